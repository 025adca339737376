package sampling

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/accounting"
	"bulkhead/internal/linux/ctxswitch"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/observe"
)

// BenchmarkThreads is what a reading of the threads of 50 groups with 40 processes of one thread each allocates, on
// files as in /proc: while all sleep, and while each group runs, one thread in ten of it.
func BenchmarkThreads(b *testing.B) {
	const groups, each = 50, 40
	dir := b.TempDir()
	w := &Watched{tasks: map[string][]cgroup.Dir{}}
	listed := map[cgroup.Dir][]int{}
	for g := range groups {
		name := fmt.Sprintf("g%02d", g)
		d := cgroup.Dir{Hierarchy: "cpuacct", Path: "/" + name}
		w.groups = append(w.groups, watchedGroup{Group: observe.Group{Group: name}})
		w.tasks[name] = []cgroup.Dir{d}
		for i := range each {
			pid := 1000 + g*each + i
			listed[d] = append(listed[d], pid)
			fakeProcess(b, filepath.Join(dir, "proc", fmt.Sprint(pid)), pid)
		}
	}
	root := sysroot.New(dir)
	list := func(_ *cgroup.Tree, d cgroup.Dir) ([]int, error) { return listed[d], nil }
	for _, run := range []bool{false, true} {
		b.Run(map[bool]string{false: "asleep", true: "running"}[run], func(b *testing.B) {
			spent, ticks := int64(1), uint64(0)
			s := &threads{waits: true, list: list,
				used: func(*cgroup.Tree, cgroup.Dir) (int64, bool) { return spent, true },
				read: func(tid int, before ctxswitch.Thread) (ctxswitch.Thread, bool, error) {
					if tid%10 != 0 {
						return ctxswitch.ReadThread(root, tid, before)
					}
					one, lives, err := ctxswitch.ReadThread(root, tid, ctxswitch.Thread{})
					one.Ran += before.Ran // as if it had run
					return one, lives, err
				},
				procs: processes{list: list, clock: func() uint64 { ticks++; return ticks },
					of: func(pid int) (accounting.Process, error) { return accounting.Read(root, pid) }}}
			k := New(nil)
			k.Watch(w)
			source := s.source(k)
			look := func() {
				put, err := source(b.Context(), noMeter())
				if err != nil {
					b.Fatal(err)
				}
				one := &observe.Sample{}
				k.Begin(one)
				put(one)
				if run {
					spent++
				}
			}
			look()
			b.ReportAllocs()
			for b.Loop() {
				look()
			}
		})
	}
}

// fakeProcess writes the files of a process, as a kernel 6.18 tells them.
func fakeProcess(b *testing.B, dir string, pid int) {
	b.Helper()
	if err := os.MkdirAll(fmt.Sprintf("%s/task/%d", dir, pid), 0o755); err != nil {
		b.Fatal(err)
	}
	stat := fmt.Sprintf("%d (sleep) S 1 7 7 0 -1 4194304 113 0 2 0 12 5 0 0 20 0 1 0 1234567 3104768 480 "+
		"18446744073709551615 94371840 94380032 140720308486144 0 0 0 0 0 0 1 0 0 17 1 0 0 0 0 0 94388224 94389504 "+
		"94650368 140720308490000 140720308490016 140720308490016 140720308494312 0\n", pid)
	for name, text := range map[string]string{
		"stat": stat, fmt.Sprintf("task/%d/stat", pid): stat, "schedstat": "1234567 89012 345\n",
		"io": "rchar: 5400\nwchar: 0\nsyscr: 11\nsyscw: 0\nread_bytes: 4096\nwrite_bytes: 0\n" +
			"cancelled_write_bytes: 0\n",
		"status": fmt.Sprintf("Name:\tsleep\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t%[1]d\nNgid:\t0\n"+
			"Pid:\t%[1]d\nPPid:\t1\nTracerPid:\t0\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\nFDSize:\t64\nGroups:\t \n"+
			"VmPeak:\t    3032 kB\nVmSize:\t    3032 kB\nVmRSS:\t    1920 kB\nThreads:\t1\n"+
			"SigQ:\t0/31811\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\nMems_allowed_list:\t0\n"+
			"voluntary_ctxt_switches:\t345\nnonvoluntary_ctxt_switches:\t2\n", pid),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}
