//go:build root

package bench

import (
	"testing"

	"bulkhead/internal/host"
)

// Scenarios where there is no cgroup v1, with systemd as PID 1 and without: the peers' arms, which write files of v1,
// are left out, and what the kernel holds under the policy is within its bounds. One limit of each kind: what others
// leave to a database is no matter for an emulated machine, so only the bounds of a smoke run are judged.
func TestScenariosOnUnifiedRoot(t *testing.T) {
	onUnified(t, "cpu-quota", "cpu-binding", "io-bandwidth", "io-iops")
}

// The same with the wire.
func TestScenariosOfTheWireOnUnifiedRoot(t *testing.T) {
	onUnified(t, "network-egress", "network-ingress")
}

func onUnified(t *testing.T, names ...string) {
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
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			if smokeRun(t, name, "8") == 0 {
				t.Errorf("no bound was judged")
			}
		})
	}
}
