//go:build root

package bench

import (
	"maps"
	"slices"
	"testing"

	"bulkhead/internal/host"
)

// Scenarios where there is no cgroup v1, with systemd as PID 1 and without: the peers' arms, which write files of v1,
// are left out, and what the kernel holds under the policy is within its bounds. One limit of each kind: what others
// leave to a database is no matter for an emulated machine, so only the bounds of a smoke run are judged. The ratios of
// all shapes are in the log.
func TestScenariosOnUnifiedRoot(t *testing.T) {
	onUnified(t, map[string]string{"cpu-quota": "8", "cpu-binding": "8", "io-bandwidth": "8", "io-iops": "8"})
}

// The same with limits under a database that commits, and that loads data up to its memory.
func TestScenariosOfDatabasesOnUnifiedRoot(t *testing.T) {
	onUnified(t, map[string]string{"io-commits": "12", "memory-limit": "60"})
}

// The same with the wire.
func TestScenariosOfTheWireOnUnifiedRoot(t *testing.T) {
	onUnified(t, map[string]string{"network-egress": "8", "network-ingress": "8"})
}

// onUnified runs scenarios by name, with so many seconds an arm.
func onUnified(t *testing.T, seconds map[string]string) {
	t.Helper()
	needRoot(t)
	facts, err := host.New("/").Facts()
	if err != nil {
		t.Fatal(err)
	}
	if cpu, ok := facts.HierarchyOf("cpu"); !ok || cpu.Version != 2 {
		t.Skip("the controllers here are those of cgroup v1, where make bench-proof runs all scenarios; the lab has " +
			"v2 (make lab MODE=unified PKG=./internal/bench RUN=TestScenarios)")
	}
	for _, name := range slices.Sorted(maps.Keys(seconds)) {
		t.Run(name, func(t *testing.T) {
			if smokeRun(t, name, seconds[name]) == 0 {
				t.Errorf("no bound was judged")
			}
		})
	}
}
