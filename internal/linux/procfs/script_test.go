package procfs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// What a process was started by is told where that is not its executable: a script and a symbolic link, by the path in
// its arguments.
func TestLiveScript(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "backup-of-everything.sh")
	if err := os.WriteFile(file, []byte("#!"+sh+"\nwhile sleep 1; do :; done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "nightly")
	if err := os.Symlink(sh, link); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, program string
		args          []string
		want          string
	}{
		{"a script by its path", file, nil, file},
		{"a script by a relative path", "./" + filepath.Base(file), nil, file},
		{"a link by its path", link, []string{"-c", "while sleep 1; do :; done"}, link},
		{"a script that its interpreter was given", sh, []string{file}, ""},
		{"the executable itself", sh, []string{"-c", "while sleep 1; do :; done"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := exec.Command(test.program, test.args...)
			c.Dir = dir
			if c.Path = test.program; !filepath.IsAbs(c.Path) {
				c.Err = nil
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = c.Process.Kill()
				_ = c.Wait()
			}()
			p := live(t, c.Process.Pid)
			for begin := time.Now(); len(p.Args) == 0 && time.Since(begin) < 10*time.Second; {
				p = live(t, c.Process.Pid) // it was in the midst of execve(2)
			}
			if base := filepath.Base(p.Exe); test.want == "" && p.Comm != base && p.Script == sh {
				return // sh is a link here: its own path is in its arguments
			}
			if p.Script != test.want {
				t.Errorf("it is %q, want %q (%+v)", p.Script, test.want, p)
			}
		})
	}
}
