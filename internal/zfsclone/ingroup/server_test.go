package ingroup

import (
	"os/exec"
	"slices"
	"testing"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/zfsclone"
)

// A process that is on its way into the group counts as the server, and one that only names its option file does not.
func TestStarting(t *testing.T) {
	h := &host.Host{Proc: procfs.New(sysroot.New("/"))}
	p := &zfsclone.Plan{Name: "dev1", Engine: engine.MySQL, Program: "/usr/sbin/mariadbd", User: "mysql", Group: "dev1",
		Base: t.TempDir()}
	s := Of(h, p, []string{"bulkhead", "--state", "/x", "run"}, time.Minute)
	args := s.HostServer.Plan.Start.Command.Args
	if want := []string{"bulkhead", "--state", "/x", "run", "--user", "mysql", "dev1", "--", "/usr/sbin/mariadbd",
		"--defaults-file=" + p.OptionFile()}; !slices.Equal(args, want) {
		t.Errorf("%q", args)
	}
	for name, c := range map[string]struct {
		args []string
		want bool
	}{"on its way": {args, true}, "editor": {[]string{"vi", p.OptionFile()}, false},
		"another group": {append(slices.Clone(args[:len(args)-1]), "--defaults-file=/y"), false}} {
		cmd := exec.Command("/bin/sh", append([]string{"-c", "read x"}, c.args...)...)
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.starting()
		if running, _ := s.Running(t.Context()); err != nil || got != c.want || running != c.want {
			t.Errorf("%s: %v, %v, %v", name, got, running, err)
		}
		_ = in.Close()
		_ = cmd.Wait()
		if got, err := s.starting(); err != nil || got {
			t.Errorf("%s, when it is gone: %v, %v", name, got, err)
		}
	}
}
