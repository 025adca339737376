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
