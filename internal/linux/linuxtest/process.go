package linuxtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Process writes a process into the /proc of a captured host below root, after another one there: like. It has another
// number, parent (0 is that of like), start time (clock ticks after the boot) and program. One that is there already
// runs another program from then on; it stays in its control groups.
func Process(t testing.TB, root string, like, pid, ppid int, start uint64, command string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("write process %d: %v", pid, err)
		}
	}
	dir := filepath.Join(root, "proc", strconv.Itoa(pid))
	text := func(file string) string {
		text, err := os.ReadFile(filepath.Join(root, "proc", strconv.Itoa(like), file))
		must(err)
		return string(text)
	}
	words := strings.Fields(command)
	comm, number := filepath.Base(words[0]), strconv.Itoa(pid)
	stat := strings.Fields(text("stat"))
	if ppid != 0 {
		stat[3] = strconv.Itoa(ppid)
	}
	stat[0], stat[1], stat[21] = number, "("+comm+")", strconv.FormatUint(start, 10)
	var status strings.Builder
	for line := range strings.Lines(text("status")) {
		switch key, _, _ := strings.Cut(line, ":"); key {
		case "Name":
			line = "Name:\t" + comm + "\n"
		case "Tgid", "Pid", "NStgid", "NSpid":
			line = key + ":\t" + number + "\n"
		case "PPid":
			line = "PPid:\t" + stat[3] + "\n"
		}
		status.WriteString(line)
	}
	must(os.MkdirAll(dir, 0o755))
	files := map[string]string{
		"stat": strings.Join(stat, " ") + "\n", "status": status.String(), "comm": comm + "\n",
		"cmdline": strings.Join(words, "\x00") + "\x00", "oom_score_adj": "0\n",
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup")); err != nil {
		files["cgroup"] = text("cgroup")
	}
	for file, content := range files {
		must(os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644))
	}
	_ = os.Remove(filepath.Join(dir, "exe")) // of what it ran before
	must(os.Symlink(words[0], filepath.Join(dir, "exe")))
}
