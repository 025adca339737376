package yamlform

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/policy"
)

// tree writes files into a new directory and goes there.
func tree(t *testing.T, files map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// refused reads a file that must be refused, and gives the problems.
func refused(t *testing.T, file string) policy.Problems {
	t.Helper()
	sources, err := Read(file)
	problems, ok := err.(policy.Problems)
	if !ok || len(problems) == 0 {
		t.Fatalf("%s: no problems, but %v and %d sources", file, err, len(sources))
	}
	return problems
}

func TestReadOrder(t *testing.T) {
	tree(t, map[string]string{
		"etc/policy.yaml":      "version: 1\ninclude: [policy.d/*.yaml, extra.yaml, policy.d/a.yaml]\n",
		"etc/policy.d/b.yaml":  "groups: {}\n",
		"etc/policy.d/a.yaml":  "include: [../shared/c.yaml]\n",
		"etc/policy.d/x.txt":   "not included",
		"etc/shared/c.yaml":    "groups: {}\n",
		"etc/extra.yaml":       "include: [shared/*.yaml, none*.yaml]\n",
		"etc/shared/d.yaml":    "include: [c.yaml]\n",
		"etc/unrelated/e.yaml": "x",
	})
	if err := os.Symlink("policy.d/a.yaml", "etc/link.yaml"); err != nil {
		t.Fatal(err)
	}
	sources, err := Read("etc/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range sources {
		got = append(got, s.Path)
	}
	want := "etc/policy.yaml etc/policy.d/a.yaml etc/shared/c.yaml etc/policy.d/b.yaml etc/extra.yaml etc/shared/d.yaml"
	if strings.Join(got, " ") != want {
		t.Errorf("read\n%s, want\n%s", strings.Join(got, " "), want)
	}
}

func TestReadRefuses(t *testing.T) {
	tree(t, map[string]string{
		"random":    "\x7fELF\x02\x01\x01\x00\x00\xff\xfe\x80random",
		"late":      "version: 1\n# caf\xe9\n",
		"nul":       "version: 1\x00",
		"utf16":     "\xff\xfev\x00e\x00r\x00",
		"escape":    "version: 1\n# \x1b[2J\n",
		"self.yaml": "include: [self.yaml]\n",
		"dir/x":     "",
		"unread":    "",
	})
	if err := syscall.Mkfifo("pipe", 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ file, place, say string }{
		{"none", "none", "no such file"},
		{"dir", "dir", "not a regular file"},
		{"pipe", "pipe", "not a regular file"},
		{"/dev/null", "/dev/null", "not a regular file"},
		{"random", "random:1:1", "U+007F"},
		{"late", "late:2:6", "byte 0xe9"},
		{"nul", "nul:1:11", "U+0000"},
		{"utf16", "utf16:1:1", "byte 0xff"},
		{"escape", "escape:2:3", "U+001B"},
		{"unread", "unread:1:1", "empty"},
		{"self.yaml", "self.yaml:1:11", "self.yaml includes self.yaml"},
	}
	for _, test := range tests {
		p := refused(t, test.file)[0]
		if p.Pos.String() != test.place || !strings.Contains(p.Msg, test.say) {
			t.Errorf("%s: %s, want %s and %q", test.file, p, test.place, test.say)
		}
		if strings.ContainsFunc(p.String(), func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' }) {
			t.Errorf("%s: %q is not fit for a terminal", test.file, p.String())
		}
	}
}

// Files that include each other in great number, or one the next without end, are refused in time.
func TestReadMany(t *testing.T) {
	files := map[string]string{"main.yaml": "version: 1\ninclude: ['d/*.yaml']\n", "deep.yaml": "include: [x/0.yaml]\n",
		"wide.yaml": "include: ['w/*']\n"}
	for i := range maxFiles + 5 {
		files[fmt.Sprintf("w/%d.yaml", i)] = "groups: {}\n"
	}
	for i := range 100 {
		files[fmt.Sprintf("d/%d.yaml", i)] = "include: ['*.yaml']\n"
		files[fmt.Sprintf("x/%d.yaml", i)] = fmt.Sprintf("include: [%d.yaml]\n", i+1)
	}
	tree(t, files)
	start := time.Now()
	for file, say := range map[string]string{"main.yaml": "include loops", "deep.yaml": "more than 16 deep",
		"wide.yaml": "more than 1000 files"} {
		problems := refused(t, file)
		if p := problems[0]; !strings.Contains(p.Msg, say) || p.Source == "" || len(problems) > maxIncludeProblems {
			t.Errorf("%s: %d problems, the first %s", file, len(problems), p)
		}
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestReadSeesWhoElseCanWrite(t *testing.T) {
	const nobody = 65534
	for _, test := range []struct {
		name   string
		change func() error
		says   string
	}{
		{"safe", func() error { return nil }, ""},
		{"file for all", func() error { return os.Chmod("main.yaml", 0o666) }, `"main.yaml" has mode 0666`},
		{"file for the group", func() error { return os.Chmod("main.yaml", 0o664) }, `"main.yaml" has mode 0664`},
		{"include for all", func() error { return os.Chmod("policy.d/a.yaml", 0o646) },
			`"policy.d/a.yaml" has mode 0646`},
		{"directory for all", func() error { return os.Chmod("policy.d", 0o777) }, `"policy.d" has mode 0777`},
		{"sticky directory", func() error { return os.Chmod("policy.d", 0o777|os.ModeSticky) }, ""},
		{"target's directory", func() error {
			return errors.Join(os.Mkdir("open", 0o777), os.Chmod("open", 0o777),
				os.Rename("policy.d/a.yaml", "open/a.yaml"),
				os.Symlink("../open/a.yaml", "policy.d/a.yaml"))
		}, `open" has mode 0777`},
		{"file of nobody's", func() error { return os.Chown("policy.d/a.yaml", nobody, 0) }, "is owned by user 65534"},
		{"link of nobody's", func() error {
			return errors.Join(os.Rename("policy.d/a.yaml", "a.yaml"), os.Symlink("../a.yaml", "policy.d/a.yaml"),
				os.Lchown("policy.d/a.yaml", nobody, 0))
		}, "is owned by user 65534"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tree(t, map[string]string{"main.yaml": "version: 1\ninclude: [policy.d/*.yaml]\n",
				"policy.d/a.yaml": "groups: {}\n"})
			if err := test.change(); errors.Is(err, fs.ErrPermission) {
				t.Skip("only root can give files away")
			} else if err != nil {
				t.Fatal(err)
			}
			said := ""
			for _, file := range []string{"main.yaml", "policy.d/a.yaml"} {
				info, err := os.Stat(file)
				if err != nil {
					t.Fatal(err)
				}
				said += othersWrite(file, info)
			}
			if !strings.Contains(said, test.says) || (said == "") != (test.says == "") {
				t.Errorf("says %q, want %q", said, test.says)
			}
			if os.Geteuid() != 0 {
				return // who cannot change the host need not trust its policy
			}
			if _, err := Read("main.yaml"); (err == nil) != (test.says == "") || err != nil &&
				!strings.Contains(err.Error(), test.says) {
				t.Errorf("Read: %v, want %q", err, test.says)
			}
		})
	}
}

func TestReadNeverWaits(t *testing.T) {
	for _, file := range []string{"fifo", "/proc/kmsg", "/proc/self/status", "/dev/tty", "/dev/zero", "/proc/self/fd"} {
		tree(t, map[string]string{"main.yaml": "version: 1\ninclude: [" + file + "]\n"})
		if err := syscall.Mkfifo("fifo", 0o600); err != nil {
			t.Fatal(err)
		}
		started := time.Now()
		if problems := refused(t, "main.yaml"); !strings.Contains(problems.Error(), "not a regular file") ||
			problems[0].Pos.Line != 2 {
			t.Errorf("%s: %v", file, problems)
		}
		if took := time.Since(started); took > 5*time.Second {
			t.Errorf("%s: took %s", file, took)
		}
	}
}

func TestReadHidesWhatNotAllMayRead(t *testing.T) {
	for name, secret := range map[string]string{
		"keys": "secret:$y$hash:\n  root: x\n", "no YAML": "a: secret: [\n", "no block": "- secret\n",
		"no text": "secret\x00\n", "alias": "groups: *secret\n",
	} {
		t.Run(name, func(t *testing.T) {
			tree(t, map[string]string{"main.yaml": "version: 1\ninclude: [link.yaml]\n", "shadow": secret})
			if err := errors.Join(os.Chmod("shadow", 0o600), os.Symlink("shadow", "link.yaml")); err != nil {
				t.Fatal(err)
			}
			err := readAll("main.yaml")
			if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(),
				"its text is not shown") {
				t.Errorf("%v", err)
			}
			if err := os.Chmod("shadow", 0o644); err != nil {
				t.Fatal(err)
			}
			err = readAll("main.yaml")
			if name != "no text" && (err == nil || !strings.Contains(err.Error(), "secret")) {
				t.Errorf("a file that all may read is not quoted: %v", err)
			}
		})
	}
}

// readAll reads a policy whose includes may hold nothing.
func readAll(path string) error {
	sources, err := Read(path)
	if err != nil {
		return err
	}
	report := NewReport(sources)
	for _, s := range sources[1:] {
		if root, ok := Open(s, "an included file", report); ok {
			Form[struct{}]{Name: "an included file"}.Read(root, "", &struct{}{})
		}
	}
	return report.Problems().OrNil()
}

// A file of 50 MB is refused by its size, without being read.
func TestReadHuge(t *testing.T) {
	tree(t, map[string]string{"huge": "version: 1\n", "main.yaml": "version: 1\ninclude: [huge]\n"})
	if err := os.Truncate("huge", 50_000_000); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := refused(t, "main.yaml")[0]
	runtime.ReadMemStats(&after)
	if p.Pos.String() != "main.yaml:2:11" || !strings.Contains(p.Msg, "larger than 4MiB") {
		t.Error(p)
	}
	if read := after.TotalAlloc - before.TotalAlloc; read > 4<<20 {
		t.Errorf("%s were allocated", policy.Bytes(read).Human())
	}
	r := NewReport(nil)
	Open(policy.Source{Path: "huge", Text: "version: 1\n" + strings.Repeat("#", MaxFileSize)}, "the policy", r)
	if err := r.Problems().OrNil(); err == nil || !strings.Contains(err.Error(), "larger than 4MiB") {
		t.Errorf("Open takes it: %v", err)
	}
}
