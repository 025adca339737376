//go:build root

package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/testdoc"
)

// debs are two versions of the Debian package, which the lab's driver makes.
const debs = "../../packages/"

// deb is the package of a version.
func deb(t *testing.T, version string) string {
	t.Helper()
	files, err := filepath.Glob(debs + version + "/*.deb")
	if err != nil || len(files) != 1 {
		t.Fatalf("packages of version %s: %q, %v", version, files, err)
	}
	return files[0]
}

// edit stands for the editor in which the ten commands have the limits of the starter chosen.
const edit = "#!/bin/sh\nsed -i -E 's/^    # (cpu|memory):/    \\1:/' \"$1\"\n"

// Pages whose commands are run.
const startPage, installPage = "../../docs/start.md", "../../docs/install.md"

// documented runs the commands that a page shows and says to be run by a test, below one heading, where the package
// lies. It gives what each said.
func documented(t *testing.T, page, test, heading string, want int, after func(i int)) (said []string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	editor := filepath.Join(t.TempDir(), "editor")
	if err := os.WriteFile(editor, []byte(edit), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, block := range testdoc.RunBy(string(text), test) {
		if block.Heading != heading {
			continue
		}
		for _, line := range block.Commands() {
			cmd := exec.Command("sh", "-c", line)
			cmd.Dir, cmd.Env = filepath.Dir(deb(t, "first")), append(os.Environ(), "EDITOR="+editor)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s: %v\n%s", line, err, out)
			}
			said = append(said, string(out))
			if after != nil {
				after(len(said))
			}
		}
	}
	if len(said) != want {
		t.Fatalf("%s shows %d commands below %q, want %d", page, len(said), heading, want)
	}
	return said
}

const startHeading = "Start: a protected MySQL in ten commands"

// started does the ten commands, and gives the limits that the policy then has of MariaDB as the kernel's files show
// them.
func started(t *testing.T, test string, after func(i int)) map[string]string {
	t.Helper()
	said := documented(t, startPage, test, startHeading, 10, after)
	for i, want := range map[int]string{1: "mysql3306", 4: "sound", 5: "cpu.limit", 6: "revision 1",
		7: " 0 not enforced", 9: "mysql3306"} {
		if !strings.Contains(said[i], want) {
			t.Errorf("command %d does not say %q:\n%s", i+1, want, said[i])
		}
	}
	text, err := os.ReadFile(policyAt)
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^    cpu: \{limit: ([0-9.]+)\}\n(?:    #.*\n)*    memory: \{max: (\d+)(M|G)iB\}`).
		FindStringSubmatch(string(text))
	if m == nil {
		t.Fatalf("the starter proposes no limits:\n%s", text)
	}
	cores, _ := strconv.ParseFloat(m[1], 64)
	bytes, _ := strconv.Atoi(m[2])
	bytes <<= map[string]int{"M": 20, "G": 30}[m[3]]
	quota, most := strconv.Itoa(int(cores*100_000)), strconv.Itoa(bytes)
	return map[string]string{"cpu.cfs_quota_us": quota, "cpu.max": quota + " 100000", "memory.limit_in_bytes": most,
		"memory.max": most}
}
