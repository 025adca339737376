package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/txtar"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/transaction"
)

var update = flag.Bool("update", false, "write the transcripts anew")

// TestTranscripts runs the command lines of testdata/model on a host that is files below a directory, over the model of
// the kernel, and holds what a user reads, and the exit code, to the transcript. A transcript is a txtar archive: files
// that the commands read, and before them what was typed and what came:
//
//	# a remark
//	$ bulkhead apply             what is on stdout follows, that on stderr with "! " before it, [exit N] unless it is 0;
//	                             < FILE is stdin, > FILE takes stdout, which for a .json has to be that
//	start DB /usr/bin/mariadbd   a process: $DB is its id
//	become DB /usr/bin/backup    the process calls itself something else
//	directory /srv/redo          the host has this directory
//	columns 80                   from here on answers go to a terminal of that width, and no line is longer
//	as 1000                      from here on who types is not root
//	crash pids.max               the next verb is killed when it is about to write to that file
//	write pids/bulkhead.a/pids.max 7   somebody else writes a limit
func TestTranscripts(t *testing.T) {
	here, err := filepath.Abs("testdata/model") // a transcript has a working directory of its own
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(here, "*.txtar"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	was, who, zone := atSteps, euid, time.Local
	t.Cleanup(func() { atSteps, euid, time.Local = was, who, zone })
	time.Local = time.UTC
	t.Setenv("SUDO_USER", "ann")
	t.Setenv("COLUMNS", "")
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			euid = func() int { return 0 }
			t.Setenv("COLUMNS", "")
			want := string(archive.Comment)
			got := newModel(t, archive.Files).play(want)
			if got == want {
				return
			}
			if *update {
				archive.Comment = []byte(got)
				if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			t.Errorf("%s: %s\nhint: read it, then go test ./internal/cli -update", file, differs(got, want))
		})
	}
}

// differs shows where two texts begin to differ.
func differs(got, want string) string {
	is, was := strings.Split(got, "\n"), strings.Split(want, "\n")
	at := 0
	for at < min(len(is), len(was)) && is[at] == was[at] {
		at++
	}
	around := func(lines []string) string {
		return strings.Join(lines[max(0, min(at-3, len(lines))):min(at+6, len(lines))], "\n")
	}
	return fmt.Sprintf("from line %d on it is\n%s\nand was\n%s", at+1, around(is), around(was))
}

// model is a host with its state directory.
type model struct {
	t         *testing.T
	root, dir string
	kernel    *cgroupfake.Kernel
	processes map[string]procfs.ID
	crash     string // the file at which the next verb is killed
}

// errCrash ends a verb as kill -9 does: nothing of it runs on.
var errCrash = errors.New("killed")

func newModel(t *testing.T, files []txtar.File) *model {
	t.Helper()
	m := &model{
		t: t, root: linuxtest.Unpack(t, linuxtest.Text(t, "hybrid")), dir: t.TempDir(),
		processes: map[string]procfs.ID{},
	}
	for _, f := range files {
		path := filepath.Join(m.dir, f.Name)
		m.must(os.MkdirAll(filepath.Dir(path), 0o755))
		m.must(os.WriteFile(path, f.Data, 0o600))
	}
	m.must(os.WriteFile(filepath.Join(m.root, "proc/loadavg"), []byte("0.10 0.20 0.30 1/99 42\n"), 0o644))
	facts, err := host.New(m.root).Facts()
	m.must(err)
	m.kernel = cgroupfake.New(facts.Hierarchies, cgroupfake.Options{Kernel: facts.Kernel})
	m.kernel.Intercept(func(o cgroupfake.Operation) error {
		m.refresh()
		if o.Op == "write" && o.File.Name == m.crash {
			m.crash = ""
			panic(errCrash)
		}
		return nil
	})
	m.process(os.Getpid(), 77, "/usr/bin/bulkhead")
	atSteps = func(o *transaction.Options) { o.Root, o.Tree, o.Watchdog, o.Probe = m.root, m.kernel.Tree, nil, nil }
	return m
}

func (m *model) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// process writes a process into /proc, made after one of the captured host.
func (m *model) process(pid int, start uint64, command string) {
	m.t.Helper()
	linuxtest.Process(m.t, m.root, 4845, pid, 0, start, command)
}

// refresh writes into /proc where the model's processes are.
func (m *model) refresh() {
	for _, id := range m.processes {
		groups := m.kernel.Membership(id.PID)
		name := filepath.Join(m.root, "proc", strconv.Itoa(id.PID), "cgroup")
		old, err := os.ReadFile(name)
		m.must(err)
		var b strings.Builder
		for line := range strings.Lines(string(old)) {
			f := strings.SplitN(strings.TrimSpace(line), ":", 3)
			id := f[1]
			if id == "" {
				id = procfs.UnifiedID
			}
			fmt.Fprintf(&b, "%s:%s:%s\n", f[0], f[1], groups[id])
		}
		m.must(os.WriteFile(name, []byte(b.String()), 0o644))
	}
}

// play does what was typed and gives the transcript anew.
func (m *model) play(transcript string) string {
	m.t.Helper()
	m.t.Chdir(m.dir)
	var b strings.Builder
	for line := range strings.Lines(transcript) {
		verb, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch verb {
		case "#":
			b.WriteString(line)
		case "as":
			b.WriteString(line)
			uid, err := strconv.Atoi(rest)
			m.must(err)
			euid = func() int { return uid }
		case "directory":
			b.WriteString(line)
			m.must(os.MkdirAll(filepath.Join(m.root, rest), 0o755))
		case "columns":
			b.WriteString(line)
			m.t.Setenv("COLUMNS", rest)
		case "start", "become":
			b.WriteString(line)
			name, command, _ := strings.Cut(rest, " ")
			id, known := m.processes[name]
			if !known {
				id = m.kernel.Spawn()
			}
			m.process(id.PID, id.Start, command)
			m.processes[name] = id
		case "crash":
			b.WriteString(line)
			m.crash = rest
		case "write":
			b.WriteString(line)
			file, value, _ := strings.Cut(rest, " ")
			hierarchy, file, _ := strings.Cut(file, "/")
			dir := cgroup.Dir{Hierarchy: hierarchy, Path: "/" + filepath.Dir(file)}
			m.must(m.kernel.Tree.Write(dir.File(filepath.Base(file)), value))
		case "$":
			b.WriteString(line)
			m.refresh()
			m.bulkhead(&b, strings.TrimPrefix(rest, "bulkhead "))
		}
	}
	return b.String()
}

// fits holds an answer to the width of the terminal.
func (m *model) fits(command, text string) {
	width, err := strconv.Atoi(os.Getenv("COLUMNS"))
	if err != nil {
		return
	}
	for line := range strings.Lines(text) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > width {
			m.t.Errorf("%s: a line of %d columns: %s", command, n, line)
		}
	}
}

// quoted is a word of a command line.
var quoted = regexp.MustCompile(`'[^']*'|\S+`)

// moment is what differs from run to run.
var moment = regexp.MustCompile(`\d{4}-\d\d-\d\d([ T])\d\d:\d\d:\d\d(\.\d+)?`)

// run runs a verb, which may be killed.
func (m *model) run(args []string, in string, out, errw io.Writer) (code int) {
	defer func() {
		if r := recover(); r == errCrash {
			code = 137
		} else if r != nil {
			panic(r)
		}
	}()
	return runVerb(m.t.Context(), args, strings.NewReader(in), out, errw)
}

func (m *model) bulkhead(b *strings.Builder, line string) {
	m.t.Helper()
	args := []string{"--state", filepath.Join(m.dir, "state"), "--socket", filepath.Join(m.dir, "s")}
	for _, word := range quoted.FindAllString(line, -1) {
		word = strings.Trim(word, "'")
		if id, is := m.processes[strings.TrimPrefix(word, "$")]; is && word[0] == '$' {
			word = strconv.Itoa(id.PID)
		}
		args = append(args, word)
	}
	var out, errw bytes.Buffer
	in, into := "", ""
	if n := len(args); n > 2 && args[n-2] == "<" {
		text, err := os.ReadFile(args[n-1])
		m.must(err)
		in, args = string(text), args[:n-2]
	} else if n > 2 && args[n-2] == ">" {
		into, args = args[n-1], args[:n-2]
	}
	code := m.run(args, in, &out, &errw)
	m.fits(line, out.String()+errw.String())
	if said := errw.String(); strings.Contains(said, "bulkhead: ") && !strings.Contains(said, "hint: ") && code < 126 {
		m.t.Errorf("%s: an error that does not say what to do next:\n%s", line, said)
	}
	if into != "" {
		m.must(os.WriteFile(into, out.Bytes(), 0o600))
		if filepath.Ext(into) == ".json" && !json.Valid(out.Bytes()) {
			m.t.Errorf("%s: that is no JSON:\n%s", line, &out)
		}
		out.Reset()
	}
	said := func(prefix, text string) {
		text = strings.ReplaceAll(text, m.dir, "DIR")
		text = strings.ReplaceAll(text, m.root, "")
		for name, id := range m.processes {
			text = regexp.MustCompile(`\b`+strconv.Itoa(id.PID)+`\b`).ReplaceAllLiteralString(text, "$"+name)
		}
		text = moment.ReplaceAllString(text, "YYYY-MM-DD${1}hh:mm:ss")
		for line := range strings.Lines(text) {
			b.WriteString(strings.TrimRight("  "+prefix+strings.TrimRight(line, "\n"), " ") + "\n")
		}
	}
	said("", out.String())
	said("! ", errw.String())
	if code != 0 {
		fmt.Fprintf(b, "  [exit %d]\n", code)
	}
}
