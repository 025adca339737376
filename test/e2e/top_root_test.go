//go:build root

package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cli/dashboard"
	"bulkhead/internal/testhost"
)

// pane is a terminal of 80 by 24 characters, which a program draws on.
type pane struct {
	t    *testing.T
	tmux []string
}

// pane runs bulkhead in one.
func (s *site) pane(t *testing.T, args ...string) *pane {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("there is no tmux here; scripts/deps installs it")
	}
	socket := filepath.Join(filepath.Dir(s.socket), "t"+strconv.Itoa(len(args)))
	w := &pane{t: t, tmux: []string{"-S", socket, "-f", os.DevNull, "-u"}}
	line := append([]string{s.program, "--policy", s.policy, "--state", s.state, "--socket", s.socket}, args...)
	w.do(append([]string{"new-session", "-d", "-x", "80", "-y", "24", "sh", "-c",
		`"$@"; echo "ended with $?"; sleep 60`, "sh"}, line...)...)
	t.Cleanup(func() { _ = w.command("kill-server").Run() })
	return w
}

func (w *pane) command(args ...string) *exec.Cmd {
	cmd := exec.Command("tmux", append(append([]string{}, w.tmux...), args...)...)
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "LC_ALL=C.UTF-8", "TMUX=")
	return cmd
}

func (w *pane) do(args ...string) string {
	w.t.Helper()
	out, err := w.command(args...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// press presses keys, and waits until the screen has these words, wherever its lines end; "!" says that one is not
// there.
func (w *pane) press(keys string, words ...string) string {
	w.t.Helper()
	for _, key := range strings.Fields(keys) {
		w.do("send-keys", key)
	}
	var screen string
	ok := func() bool {
		screen = w.do("capture-pane", "-p")
		flat := strings.Join(strings.Fields(screen), " ")
		for _, word := range words {
			word, not := strings.CutPrefix(word, "!")
			if regexp.MustCompile(word).MatchString(flat) == not {
				return false
			}
		}
		return true
	}
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("after %q the screen does not have %q:\n%s", keys, words, screen)
		}
	}
	return screen
}

// A person looks at a running agent with top, presses each key, goes back in time, and quits.
func TestTop(t *testing.T) {
	s := newSite(t)
	hog := testhost.Spin(t)
	_, idle := marked(t, 60071)
	s.write("groups:\n  pg:\n    role: database\n    match: [{exe: no-such-program}]\n" +
		"    groups:\n      backup: {match: [{cmdline: '" + idle + "'}], tasks: 50}\n" +
		"  reports: {role: batch, match: [{exe: no-such-program-either}], cpu: {limit: 0.1}}\n")
	s.agent()
	s.must("apply")
	s.must("move", "reports", strconv.Itoa(hog.PID))
	w := s.pane(t, "top")
	first := w.press("", " live", `GROUP CPU TREND WAIT HELD`, `> pg`, ` backup `, `!reports 0[.]1\d [^ ]+ .* \d\d+%`)
	w.press("Down Down", `>!reports`)
	w.press("l", "Limits of reports", "cpu.limit 0[.]10 0[.]10 0[.]1.*BITES: held back in",
		`bulkhead set reports:cpu.limit=0[.]2 --for 1h`)
	w.press("w", "Why does reports wait[?]", "Its own limit cpu.limit .*: held back in", "!Limits of reports")
	w.press("Escape", "!Why does")
	w.press("?", "choose a group", "HELD periods in which", "!reports 0[.]1")
	w.press("?", "!choose a group", "> ?!reports")
	w.press("s", `s:sort\(cpu\)`, `TASKS >!reports`)
	w.press("r", `s:sort\(cpu\)`, `!TASKS >!reports`)
	w.press("r S", `s:sort\(name\)`)
	w.press("Up Up", `> pg`)
	w.press("Enter", `> pg \+`, "!backup")
	w.press("Enter", "backup")
	w.press("/ b a c k Enter", "FILTER back", "!reports", "> pg")
	w.press("Escape", "reports", "!FILTER")
	soon(t, "samples with groups to go back to", func() bool {
		then, err := time.Parse(time.DateTime, timeOf(first))
		now, e := time.Parse(time.DateTime, timeOf(w.press("", " live")))
		return err == nil && e == nil && now.Sub(then) >= 5*time.Second
	})
	frozen := w.press("f", "FROZEN: f goes on")
	earlier := w.press("Left Left", "FROZEN", "reports 0[.]1", "!"+regexp.QuoteMeta(timeOf(frozen)))
	w.press("f", " live", "!"+regexp.QuoteMeta(timeOf(frozen)))
	w.press("{", "! nothing is recorded at ")
	w.do("resize-window", "-x", "120", "-y", "40")
	w.press("", "OF MAX RUN BLKD LOAD")
	w.press("q", "ended with 0", "!GROUP")

	// What a person has seen is there again.
	w = s.pane(t, "top", "--at", timeOf(earlier))
	again := w.press("", "RECORDED", regexp.QuoteMeta(timeOf(earlier)))
	rows := func(screen string) (all []string) {
		for _, line := range strings.Split(screen, "\n")[1:] {
			if f := strings.Fields(strings.Trim(line, ">! ")); len(f) > 8 && f[0] != "CPU" && f[0] != "GROUP" {
				// Without the trend, which begins where it is read.
				all = append(all, strings.Join(append(f[:2:2], f[3:]...), " "))
			}
		}
		return all
	}
	if got, want := rows(again), rows(earlier); len(want) != 3 || !reflect.DeepEqual(got, want) {
		t.Errorf("at %s there was\n%s\nand is\n%s", timeOf(earlier), earlier, again)
	}
	w.press("C-c", "ended with 0")
}

// timeOf is the time that a screen is of.
func timeOf(screen string) string {
	return regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`).FindString(screen)
}

// What `top` printed of a running agent is what it prints of that moment from the record, in each cell. A machine so
// busy that a sample was not fetched before the next one has other rates there, and may; nothing else.
func TestTopAtIsWhatWasLive(t *testing.T) {
	s := newSite(t)
	hog := testhost.Spin(t)
	s.write("groups:\n" +
		"  reports: {match: [{exe: no-such-program}], cpu: {limit: 0.2}, tasks: 30, memory: {max: 64MiB}}\n" +
		"  empty: {match: [{exe: no-such-program}], cpu: {limit: 1}}\n")
	s.agent()
	s.must("apply")
	s.must("move", "reports", strconv.Itoa(hog.PID))
	read := func(args ...string) (one dashboard.Once) {
		t.Helper()
		if err := json.Unmarshal([]byte(s.must(append([]string{"top", "--json"}, args...)...)), &one); err != nil {
			t.Fatal(err)
		}
		return one
	}
	soon(t, "rates of the groups, and a record of their limits, which are read every 10 s", func() bool {
		one := read()
		if len(one.Groups) != 2 || one.Groups[1].Values["cpu"] == 0 {
			return false
		}
		then := read("--at", one.At.Format(time.RFC3339Nano))
		return len(then.Groups) == 2 && then.Groups[1].Shown["limits"] != ""
	})
	same := 0
	for tries := 0; same < 4 && tries < 20; tries++ {
		live := read()
		then := read("--at", live.At.Format(time.RFC3339Nano))
		if reflect.DeepEqual(live, then) && live.Groups[1].Values["cpu"] > 0 {
			same++
			continue
		}
		t.Logf("at %v it was\n%+v\nand is\n%+v", live.At, live, then)
		for i, g := range live.Groups {
			for _, column := range []string{"memory", "tasks", "limits", "run", "load"} {
				if got := then.Groups[i].Shown[column]; got != g.Shown[column] {
					t.Errorf("%s of %s at %v is %q and was %q", column, g.Group, live.At, got, g.Shown[column])
				}
			}
		}
	}
	if same < 4 {
		t.Errorf("%d moments are as they were", same)
	}
}
