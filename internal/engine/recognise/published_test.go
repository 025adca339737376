package recognise

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
)

// published reads a process table of testdata/published. A line names one thing, an indented line below a process is
// one argument of it; files as in a txtar archive follow.
func published(t testing.TB, name string) ([]procfs.Process, fake) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	src := fake{
		listeners: make(map[int][]sockets.Listener), connected: make(map[int][]sockets.Listener),
		cwd: make(map[int]string),
		env: make(map[int][]string), files: make(map[string]string),
	}
	var procs []procfs.Process
	file := ""
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "-- /"); ok {
			file, _, _ = strings.Cut("/"+rest, " --")
			src.files[file] = ""
			continue
		}
		if file != "" {
			src.files[file] += line
			continue
		}
		line = strings.TrimSuffix(line, "\n")
		if arg, ok := strings.CutPrefix(line, "  "); ok {
			p := &procs[len(procs)-1]
			p.Args = append(p.Args, arg)
			continue
		}
		w := strings.Fields(line)
		if len(w) == 0 || w[0] == "#" {
			continue
		}
		pid, err := strconv.Atoi(w[1])
		if err != nil {
			t.Fatalf("%s: %q has no pid", name, line)
		}
		switch w[0] {
		case "process":
			ppid, _ := strconv.Atoi(w[2])
			p := process(pid, ppid, w[4], w[5], "")
			p.Args = nil
			p.UID, _ = strconv.Atoi(w[3])
			procs = append(procs, p)
		case "listen":
			var where []any
			for _, text := range w[2:] {
				if port, err := strconv.Atoi(text); err == nil {
					where = append(where, port)
				} else {
					where = append(where, text)
				}
			}
			src.listeners[pid] = listening(pid, where...)[pid]
		case "connect":
			port, _ := strconv.Atoi(w[2])
			src.connected[pid] = listening(pid, port)[pid]
		case "cwd":
			src.cwd[pid] = w[2]
		case "env":
			src.env[pid] = append(src.env[pid], w[2])
		case "cgroup":
			for i := range procs {
				if procs[i].PID == pid {
					procs[i].Cgroups = map[string]string{"unified": w[2]}
				}
			}
		default:
			t.Fatalf("%s: %q is not understood", name, line)
		}
	}
	return procs, src
}

// Engines of which no server could be run: process tables made after documentation and published listings. Each file
// says which.
func TestRecognisePublished(t *testing.T) {
	files, err := filepath.Glob("testdata/published/*.txt")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			procs, src := published(t, file)
			text := describe(Instances(procs, src), procs)
			golden(t, "published/"+strings.TrimSuffix(filepath.Base(file), ".txt")+".golden", text)
			if strings.Contains(text, "hidden") {
				t.Error("a password is shown")
			}
		})
	}
}
