package cgroup_test

import (
	"errors"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

var apart = []host.Hierarchy{
	{ID: "cpu", Version: 1, Mount: "/sys/fs/cgroup/cpu", Controllers: []string{"cpu"}},
	{ID: "pids", Version: 1, Mount: "/sys/fs/cgroup/pids", Controllers: []string{"pids"}},
}

// At every write the process may exit and another one get its number. That one is put back where it was born.
func TestMovePutsAStrangerBack(t *testing.T) {
	for at := 1; at <= 2; at++ {
		k := cgroupfake.New(apart, cgroupfake.Options{})
		must(t, k.Make(dir("cpu", "/a")), k.Make(dir("pids", "/a")))
		p := k.Spawn()
		writes := 0
		var stranger procfs.ID
		k.Intercept(func(o cgroupfake.Operation) error {
			if o.Op == "write" {
				if writes++; writes == at {
					k.Exit(p.PID)
					stranger = k.Reuse(p.PID)
				}
			}
			return nil
		})
		err := k.MoveAll(p, nil, map[string]string{"cpu": "/", "pids": "/"}, dir("cpu", "/a"), dir("pids", "/a"))
		if !errors.Is(err, cgroup.ErrExited) {
			t.Errorf("at write %d: %v", at, err)
		}
		if got := k.Membership(stranger.PID); got["cpu"] != "/" || got["pids"] != "/" || k.Mistaken() != 1 {
			t.Errorf("at write %d: the stranger is in %v, %d mistaken moves", at, got, k.Mistaken())
		}
	}
}

// One that exits after it was moved is no mistake, nor is a stranger that was born where the move led.
func TestMoveOfOneThatExits(t *testing.T) {
	k := cgroupfake.New(apart, cgroupfake.Options{})
	a := dir("cpu", "/a")
	must(t, k.Make(a))
	p := k.Spawn()
	k.Intercept(func(o cgroupfake.Operation) error {
		if o.Op == "write" {
			k.Exit(p.PID)
		}
		return nil
	})
	if err := k.Move(a, p); !errors.Is(err, cgroup.ErrExited) || k.Mistaken() != 0 {
		t.Errorf("%v, %d mistaken moves", err, k.Mistaken())
	}
	k.Intercept(nil)
	if err := k.Move(a, p); !errors.Is(err, cgroup.ErrExited) {
		t.Errorf("one that is gone: %v", err)
	}
}

func TestMoveAllOrNone(t *testing.T) {
	k := cgroupfake.New(apart, cgroupfake.Options{})
	must(t, k.Make(dir("cpu", "/a")), k.Make(dir("pids", "/a")), k.Make(dir("cpu", "/home")), k.Make(dir("cpu", "/b")))
	p := k.Spawn()
	must(t, k.Move(dir("cpu", "/home"), p))
	from := map[string]string{"cpu": "/home", "pids": "/"}
	in := func(cpu, pids string) {
		t.Helper()
		if got := k.Membership(p.PID); got["cpu"] != cpu || got["pids"] != pids {
			t.Errorf("it is in %v, want cpu %s, pids %s", got, cpu, pids)
		}
	}
	if err := k.MoveAll(p, nil, from, dir("cpu", "/a"), dir("pids", "/absent")); !errors.Is(err, cgroup.ErrGone) {
		t.Errorf("into a directory that is not there: %v", err)
	}
	in("/home", "/")
	// The way back fails too: both are told.
	k.FailMatch("write", "cpu:/home/*", syscall.EACCES)
	if err := k.MoveAll(p, nil, from, dir("cpu", "/a"), dir("pids", "/absent")); !errors.Is(err, cgroup.ErrGone) ||
		!errors.Is(err, syscall.EACCES) {
		t.Errorf("no way back: %v", err)
	}
	in("/a", "/")
	k.Intercept(nil)
	must(t, k.MoveAll(p, nil, from, dir("cpu", "/b"), dir("pids", "/a")))
	in("/b", "/a")
	must(t, k.MoveAll(p, nil, from))
	// A thread that cannot enter keeps the whole process out.
	if err := k.SetRealtime(p.PID, true); err == nil {
		t.Error("real-time inside a v1 cpu group")
	}
	q := k.Spawn()
	must(t, k.SetRealtime(q.PID, true))
	if err := k.MoveAll(q, nil, map[string]string{"cpu": "/", "pids": "/"}, dir("pids", "/a"),
		dir("cpu", "/a")); !errors.Is(err, cgroup.ErrRealtime) {
		t.Errorf("a real-time thread: %v", err)
	}
	if got := k.Membership(q.PID); got["cpu"] != "/" || got["pids"] != "/" {
		t.Errorf("it is in %v", got)
	}
}
