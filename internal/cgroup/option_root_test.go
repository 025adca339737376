//go:build root

package cgroup_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/testhost"
)

// mountLine is what mountinfo says of the cgroup2 mount, its own flags and the options of the file system.
func mountLine(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, " - cgroup2 ") {
			return line
		}
	}
	return ""
}

// Switching the option on and off again leaves all others as they were. Kernel 6.18 keeps moves fast until the next
// boot, so outside of the lab this runs only when FAST=1 asks for it.
func TestFastMovesOnTheKernel(t *testing.T) {
	if os.Getenv("BULKHEAD_LAB") == "" && os.Getenv("FAST") != "1" {
		t.Skip("it would leave this kernel with fast moves until it is booted again; FAST=1 runs it, as the lab does")
	}
	facts, err := host.New("/").Facts()
	must(t, err)
	tree := cgroup.New(facts.Hierarchies)
	t.Cleanup(func() { tree.Close() }) // after the option is off again
	options, option := cgroup.MountOptions{Tree: tree}, dir(procfs.UnifiedID, "/").File(cgroup.FavorDynmods).String()
	h, mounted := facts.Hierarchy(procfs.UnifiedID)
	if !mounted {
		if _, err := options.Read(t.Context(), option); !errors.Is(err, cgroup.ErrNoHierarchy) {
			t.Errorf("without a cgroup2: %v", err)
		}
		return
	}
	before := mountLine(t)
	t.Logf("kernel %s, %s", facts.Kernel, before)
	if slices.Contains(h.Options, cgroup.FavorDynmods) {
		t.Fatal("it is on already")
	}
	err = options.Write(context.Background(), option, "on")
	if !facts.Kernel.AtLeast(6, 0) {
		if !errors.Is(err, cgroup.ErrInvalid) || mountLine(t) != before {
			t.Errorf("before 6.0: %v, and mounted\n%s", err, mountLine(t))
		}
		return
	}
	must(t, err)
	t.Cleanup(func() {
		if err := options.Write(context.Background(), option, "off"); err != nil || mountLine(t) != before {
			t.Errorf("switched off: %v, and mounted\n%sas before\n%s", err, mountLine(t), before)
		}
	})
	if got, err := options.Read(t.Context(), option); got != "on" || err != nil {
		t.Errorf("reads back %q, %v", got, err)
	}
	if got := strings.ReplaceAll(mountLine(t), ","+cgroup.FavorDynmods, ""); got != before {
		t.Errorf("mounted\n%swas\n%s", got, before)
	}
	if err := options.Write(context.Background(), option, "max"); !errors.Is(err, cgroup.ErrInvalid) {
		t.Errorf("max: %v", err)
	}
	if testing.Short() {
		return
	}
	measureFastMoves(t, tree, options, option)
}

// measureFastMoves logs what the option gains a move after a quiet while, and what it costs fork and exit, in pairs,
// with one arm against itself beside it. It asserts nothing: how much that is, is the machine's.
func measureFastMoves(t *testing.T, tree *cgroup.Tree, options cgroup.MountOptions, option string) {
	t.Helper()
	root := testhost.Root(t)
	group := governed(t, tree, root, accounting(t))
	sleeper := exec.Command("sleep", "600")
	must(t, sleeper.Start())
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	home := dir(group.Hierarchy, "/")
	move := func() float64 {
		var times []float64
		for range 10 {
			time.Sleep(50 * time.Millisecond) // the kernel's quiet while
			start := time.Now()
			must(t, tree.Move(group, procfs.ID{PID: sleeper.Process.Pid}))
			times = append(times, time.Since(start).Seconds())
			must(t, tree.Move(home, procfs.ID{PID: sleeper.Process.Pid}))
		}
		slices.Sort(times)
		return times[len(times)/2]
	}
	fork := func() float64 {
		start := time.Now()
		for range 100 {
			must(t, exec.Command("true").Run())
		}
		return time.Since(start).Seconds() / 100
	}
	for what, run := range map[string]func() float64{"a move after 50 ms of quiet": move,
		"fork, exec and exit of true": fork} {
		var ratios, same, off []float64
		for range 7 {
			one := map[string]float64{}
			for _, arm := range []string{"off", "on", "off again"} {
				value, _, _ := strings.Cut(arm, " ")
				must(t, options.Write(t.Context(), option, value))
				one[arm] = run()
			}
			ratios, same, off = append(ratios, one["on"]/one["off"]), append(same, one["off again"]/one["off"]),
				append(off, one["off"])
		}
		for _, list := range [][]float64{ratios, same, off} {
			slices.Sort(list)
		}
		t.Logf("%s: %.3f ms without; with it %.3f times that; without it against itself %.3f to %.3f times", what,
			off[3]*1e3, ratios[3], same[0], same[6])
	}
}
