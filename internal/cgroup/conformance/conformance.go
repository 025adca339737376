// Package conformance holds what a cgroup tree must do as one list of assertions that runs on the model
// of package cgroupfake and on a real kernel. An assertion that only one of them passes is a fault of
// the model.
//
// Each case names the controller and cgroup version it needs. Where the tree has no such hierarchy
// the case is not run, and Run says so by name.
package conformance

import (
	"fmt"
	"slices"
	"testing"
)

// Run runs every case on a subject of its own and gives the names of those that the tree has no hierarchy
// for. They are logged too: a caller that knows what it should have covered compares.
func Run(t *testing.T, newSubject func(*testing.T) Subject) (uncovered []string) {
	t.Helper()
	for _, c := range slices.Concat(coreCases, v1Cases, v2Cases) {
		name := fmt.Sprintf("v%d/%s/%s", c.version, orCore(c.controller), c.name)
		t.Run(name, func(t *testing.T) {
			b := &bench{T: t, Subject: newSubject(t)}
			if !b.find(c) {
				uncovered = append(uncovered, name)
				t.Logf("not covered here: no cgroup v%d hierarchy holds %s", c.version, orCore(c.controller))
				return
			}
			c.run(b)
		})
	}
	for _, name := range uncovered {
		t.Logf("not covered: %s", name)
	}
	return uncovered
}
