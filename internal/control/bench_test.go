//go:build root

package control

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
)

// manyGroups is a policy of n groups with eight limits each, whose rules match nothing.
func manyGroups(root string, n int) []policy.Source {
	var b strings.Builder
	fmt.Fprintf(&b, "version: 1\nhost: {root: %s}\ngroups:\n", root)
	for i := range n {
		fmt.Fprintf(&b, "  g%03d:\n    match: [{exe: /nonexistent/g%03d}]\n    cpu: {weight: %d, limit: 0.5, period: "+
			"50ms, burst: 10ms}\n    memory: {max: 64MiB, swap: 0, swappiness: 10}\n    tasks: 100\n", i, i, i+1)
	}
	return []policy.Source{{Path: "bench.yaml", Text: b.String()}}
}

// BenchmarkPassNothingToDo is one full pass of the agent over 200 groups of eight limits, all in
// force: look at the host, classify, observe every knob, plan.
func BenchmarkPassNothingToDo(b *testing.B) {
	root := testhost.Root(b)
	c, err := transaction.Open(transaction.Options{State: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	sources := manyGroups(root, 200)
	if _, err := Do(context.Background(), c,
		api.Request{Verb: "apply", Sources: sources, By: "benchmark"}); err != nil {
		b.Fatal(err)
	}
	defer func() {
		if _, err := Do(context.Background(), c, api.Request{Verb: "release", All: true, By: "benchmark"}); err != nil {
			b.Error(err)
		}
	}()
	looks := &reconcile.Reconciler{Controller: c}
	for b.Loop() { // a full look as the agent takes it
		processes, err := c.Host.Proc.Processes(procfs.Options{})
		if err != nil {
			b.Fatal(err)
		}
		done, err := looks.Look(context.Background(), reconcile.LookOptions{Full: true, Processes: processes})
		if err != nil {
			b.Fatal(err)
		}
		if done.Repaired != 0 || len(done.Moved) != 0 {
			b.Fatalf("a host that is as asked was changed: %+v", done)
		}
	}
}

// BenchmarkLookAfterAFork is a quick look of the agent at 50 groups of 2,000 processes, all in their places, of which
// one is another one each time.
func BenchmarkLookAfterAFork(b *testing.B) { benchmarkLook(b, false) }

// BenchmarkFullLook is a full look at the same.
func BenchmarkFullLook(b *testing.B) { benchmarkLook(b, true) }

func benchmarkLook(b *testing.B, full bool) {
	b.Helper()
	const groups, processes = 50, 2000
	root := testhost.Root(b)
	c, err := transaction.Open(transaction.Options{State: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	var text strings.Builder
	fmt.Fprintf(&text, "version: 1\nhost: {root: %s}\ngroups:\n", root)
	for g := range groups {
		fmt.Fprintf(&text, "  g%02d: {match: [{cmdline: '^made-up 6%02d$'}], cpu: {weight: 100, limit: 1}, tasks: "+
			"1000}\n", g, g)
	}
	ctx := context.Background()
	if _, err := Do(ctx, c, api.Request{Verb: "apply", By: "benchmark",
		Sources: []policy.Source{{Path: "bench.yaml", Text: text.String()}}}); err != nil {
		b.Fatal(err)
	}
	defer func() {
		if _, err := Do(ctx, c, api.Request{Verb: "release", All: true, By: "benchmark"}); err != nil {
			b.Error(err)
		}
	}()
	v, _, err := c.Membership(ctx)
	if err != nil {
		b.Fatal(err)
	}
	var tables [2][]procfs.Process
	for p := range processes { // none of them is there: a quick look reads no process
		group := fmt.Sprintf("g%02d", p%groups)
		one := procfs.Process{ID: procfs.ID{PID: 10_000_000 + p, Start: 1}, PPID: 10_000_000, State: 'S', Threads: 1,
			Comm: "made-up", Exe: "/usr/bin/made-up", Args: []string{"made-up", fmt.Sprintf("6%02d", p%groups)},
			Cgroups: map[string]string{}}
		if p == 0 {
			one.PPID = 1
		}
		for hierarchy, d := range v.Layout.Member(group) {
			one.Cgroups[hierarchy] = d.Path
		}
		for i := range tables {
			tables[i] = append(tables[i], one)
		}
	}
	looks := &reconcile.Reconciler{Controller: c}
	look := func(table []procfs.Process, full bool) {
		done, err := looks.Look(ctx, reconcile.LookOptions{Full: full, Processes: table, Changed: true})
		if err != nil {
			b.Fatal(err)
		}
		if done.Repaired != 0 || len(done.Moved) != 0 {
			b.Fatalf("a host that is as asked was changed: %+v", done)
		}
	}
	look(tables[0], true)
	b.ReportAllocs()
	for n := uint64(0); b.Loop(); n++ {
		table := tables[n%2]
		table[processes-1].Start = n + 2
		look(table, full)
	}
}
