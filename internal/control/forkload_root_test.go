//go:build root

package control

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/probe"
	"bulkhead/internal/testhost"
)

// TestTasksAtTheirLimit: a load that is at its group's limit on tasks wants no thread there, however busy the host is,
// so that it comes back with a count each time.
func TestTasksAtTheirLimit(t *testing.T) {
	tree := testhost.Tree(t)
	s := newSite(t)
	at := cgroup.Dir{Hierarchy: s.of("pids").ID, Path: fmt.Sprintf("/bulkhead-test-fork-%d", os.Getpid())}
	if err := tree.Make(at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(at); err != nil {
			t.Error(err)
		}
	})
	const limit = 40
	if err := tree.Write(at.File("pids.max"), fmt.Sprint(limit)); err != nil {
		t.Fatal(err)
	}
	var over atomic.Bool
	defer over.Store(true)
	for range 2 * runtime.NumCPU() {
		go func() {
			for !over.Load() {
			}
		}()
	}
	for i := range 20 {
		l, err := probe.Start(t.Context(), host.New("/"), []string{"be-a-load"})
		if err != nil {
			t.Fatal(err)
		}
		err = tree.MoveAll(l.ID, nil, nil, at)
		var a probe.Answer
		if err == nil {
			a, err = l.Do(t.Context(), probe.Order{Fork: &probe.Fork{Tasks: limit + 20}}, 10*time.Second)
		}
		l.Close()
		if err != nil || a.Count != limit || !a.Refused {
			t.Fatalf("load %d: %+v, %v", i+1, a, errors.Join(err))
		}
	}
}
