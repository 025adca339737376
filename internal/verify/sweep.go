package verify

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/procfs"
)

// Sweeper removes the directories that probes left behind.
type Sweeper struct {
	Tree *cgroup.Tree
	Proc procfs.FS
	Self procfs.ID
}

// Sweep removes directories of probes at or below the given ones: those of this process and of processes that are gone.
// With all, also those of a probe that runs; its loads are killed.
func (s Sweeper) Sweep(tops []cgroup.Dir, all bool) error {
	var dirs []cgroup.Dir
	for _, top := range tops {
		below, err := s.Tree.Walk(top)
		if err != nil && !errors.Is(err, cgroup.ErrGone) {
			return err
		}
		dirs = append(dirs, below...)
	}
	var failed []error
	for _, d := range slices.Backward(dirs) {
		maker, ours := Maker(d.Path)
		if !ours || maker != s.Self && s.Proc.Alive(maker) && !all {
			continue
		}
		if all {
			s.endLoads(d, maker)
		}
		if err := s.Tree.Remove(d); err != nil && !errors.Is(err, cgroup.ErrGone) {
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// Maker says which process made a directory for a probe.
func Maker(dir string) (maker procfs.ID, ours bool) {
	for element := range strings.SplitSeq(dir, "/") {
		rest, is := strings.CutPrefix(element, probePrefix)
		words := strings.Split(rest, "-")
		if !is || len(words) != 3 {
			continue
		}
		pid, err := strconv.Atoi(words[0])
		start, err2 := strconv.ParseUint(words[1], 10, 64)
		if err == nil && err2 == nil {
			return procfs.ID{PID: pid, Start: start}, true
		}
	}
	return maker, false
}

// endLoads kills the loads in a directory of a probe that is under way.
func (s Sweeper) endLoads(d cgroup.Dir, maker procfs.ID) {
	pids, err := s.Tree.Procs(d)
	if err != nil || len(pids) == 0 || !s.Proc.Alive(maker) {
		return
	}
	procs, err := s.Proc.Processes(procfs.Options{PIDs: pids})
	if err != nil {
		return
	}
	for _, proc := range procs {
		if proc.PPID == maker.PID && proc.PID != os.Getpid() {
			_ = syscall.Kill(proc.PID, syscall.SIGKILL)
		}
	}
}
