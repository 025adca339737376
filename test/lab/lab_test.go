//go:build lab

package lab

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	mode  = flag.String("lab.mode", "unified", "`modes` of the machines, several between blanks; all: each of them")
	shell = flag.Bool("lab.shell", false, "no tests: a shell in the machine, on this terminal")
	pkgs  = flag.String("lab.pkg", "",
		"only the root tests of these `packages`, also ones that a mode leaves out, and nothing else")
	only = flag.String("lab.run", "",
		"only root tests whose name matches the `regexp`, as go test -run has it, and nothing else")
	long = flag.Bool("lab.long", false,
		"whole walks where a machine has little time otherwise: without it tests see testing.Short")
	limit  = flag.Duration("lab.limit", 25*time.Minute, "how long a machine may run")
	record = flag.String("lab.record", "", "write what the machines said into this `directory`")
)

// quick says that only some tests run, as somebody who works on them wants it: what the mode shows beside tests is left
// out, and the console goes to the terminal as it comes.
func quick() bool { return *only != "" || *pkgs != "" }

// top is the repository as seen from here.
const top = "../.."

// TestLab boots the machines, has them run the root tests, and holds them to each of these by name: one that was
// skipped or is missing counts as failed.
func TestLab(t *testing.T) {
	modes, err := ParseModes(*mode)
	must(t, err)
	if *shell && len(modes) > 1 {
		t.Fatal("a shell is in one machine")
	}
	if *record != "" { // before the machines run
		must(t, os.MkdirAll(*record, 0o750))
	}
	dir, p := cache(t), &payload{work: t.TempDir(), modes: modes}
	for _, m := range modes {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			img := build(t, dir, m)
			p.once.Do(func() { p.make(t) })
			if p.image == "" {
				t.Fatal("there is no payload to run")
			}
			slot(t, dir)
			console := boot(t, m, img, p.image, filepath.Join(dir, "console-"+m.Name+".txt"))
			if !*shell {
				judge(t, m, console, p.tests[m.Name])
			}
		})
	}
}

// TestImages builds what is missing of the images.
func TestImages(t *testing.T) {
	modes, err := ParseModes(*mode)
	must(t, err)
	images := map[string]Mode{}
	for _, m := range modes {
		images[m.Image()] = m
	}
	dir := cache(t)
	for name, m := range images {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			build(t, dir, m)
		})
	}
}

// judge holds what a machine said against what it was to do.
func judge(t *testing.T, m Mode, console []byte, tests map[string][]string) {
	t.Helper()
	sections, broken := Transcript(bytes.NewReader(console))
	if *record != "" {
		now := time.Now()
		name := now.Format(time.DateOnly) + "-" + m.Name
		if _, err := os.Stat(filepath.Join(*record, name+".txt")); quick() ||
			err == nil { // what the machine said before stays
			name += now.Format("-1504")
		}
		must(t, os.WriteFile(filepath.Join(*record, name+".txt"), report(m, sections, now), 0o644))
	}
	byName := map[string]Section{}
	var times []string
	for i, s := range sections {
		if i > 0 {
			took := s.Ended - sections[i-1].Ended
			if took < 0 { // the clock of a new boot
				took = s.Ended
			}
			times = append(times, fmt.Sprintf("%s %.0f", s.Name, took.Seconds()))
		}
		byName[s.Name] = s
		if s.Status != 0 {
			t.Errorf("%s: exit status %d\n%s", s.Name, s.Status, s.Text())
		}
	}
	t.Logf("seconds: boot %.0f, %s", byName["mounts"].Ended.Seconds(), strings.Join(times, ", "))
	if broken != nil { // whatever else is missing then is no news
		t.Fatalf("%v; the console ends with\n%s", broken, tail(console))
	}
	for _, mounts := range []string{"mounts", "again/mounts"} {
		if s, ok := byName[mounts]; ok || mounts == "mounts" {
			if err := m.Check(s.Lines); err != nil {
				t.Fatalf("%s: %v", mounts, err)
			}
		}
	}
	if m.Systemd != slices.Contains(byName["kernel"].Lines, "PID 1: systemd") {
		t.Fatalf("mode %s, but the machine says\n%s", m.Name, byName["kernel"].Text())
	}
	for pkg, names := range tests {
		for _, test := range names {
			if !byName[pkg].Passed(test) {
				t.Errorf("%s: %s did not pass", pkg, test)
			}
		}
	}
	if m.Systemd && !quick() {
		checkServices(t, byName["discover"].Text())
	}
	before, after := byName["state-before"].Text(), byName["state-after"].Text()
	// Which controllers the top hands down is systemd's business: 257 leaves them there when nobody needs them.
	if m.Systemd {
		handed := regexp.MustCompile(`(?m)^/sys/fs/cgroup/cgroup\.subtree_control: .*\n?`)
		before, after = handed.ReplaceAllString(before, ""), handed.ReplaceAllString(after, "")
	}
	if before != after {
		t.Errorf("the tests left the machine as\n%s\nit was\n%s", after, before)
	}
}

// checkServices sees that the databases which systemd started are found, each in its unit.
func checkServices(t *testing.T, discovered string) {
	t.Helper()
	for _, want := range []string{"mariadb", "postgresql", "3306", "5432"} {
		if !strings.Contains(strings.ToLower(discovered), want) {
			t.Errorf("discover does not show %q:\n%s", want, discovered)
		}
	}
}

// report is what the machine said, without what only concerns this driver.
func report(m Mode, sections []Section, now time.Time) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "Root tests in an emulated machine, mode %s.\n", m.Name)
	fmt.Fprintf(&b, "%s; qemu -accel tcg,thread=multi.\n", now.UTC().Format("2006-01-02 15:04"))
	if commit, err := exec.Command("git", "describe", "--always", "--dirty").Output(); err == nil {
		fmt.Fprintf(&b, "Commit %s.\n", bytes.TrimSpace(commit))
	}
	if quick() {
		fmt.Fprintf(&b, "Only the packages %q and tests %q.\n", *pkgs, *only)
	}
	if !*long {
		b.WriteString("Shortened as testing.Short has it.\n")
	}
	left := exemptions(m)
	if m.Systemd {
		fmt.Fprintf(&b, "Of %s only the tests in files named systemd*.\n", strings.Join(apart, ", "))
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		fmt.Fprintf(&b, "Not for this mode: %s %s.\n", name, left[name])
	}
	for _, s := range sections {
		s.Lines = slices.DeleteFunc(slices.Clone(s.Lines),
			func(line string) bool { return strings.HasPrefix(line, "=== ") })
		fmt.Fprintf(&b, "\n== %s: exit status %d\n%s", s.Name, s.Status, s.Text())
	}
	return b.Bytes()
}

// tail gives the last lines of a console.
func tail(console []byte) string {
	lines := strings.Split(strings.TrimSpace(string(console)), "\n")
	return strings.Join(slices.Clone(lines[max(0, len(lines)-40):]), "\n")
}
