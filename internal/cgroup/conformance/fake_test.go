package conformance_test

import (
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/cgroup/conformance"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/procfs"
)

// Hosts that the model runs as, by the hierarchies they have.
var (
	everything = []string{"blkio", "cpu", "cpuset", "hugetlb", "memory", "pids"}

	legacy = []host.Hierarchy{
		v1("cpu", "cpuacct"), v1("cpuset"), v1("memory"), v1("blkio"), v1("pids"), v1("freezer"), v1("hugetlb"),
		v1("net_cls", "net_prio"),
	}
	unified = []host.Hierarchy{{ID: procfs.UnifiedID, Version: 2, Controllers: everything, Mount: "/sys/fs/cgroup",
		Root: "/"}}
	hybrid = []host.Hierarchy{
		v1("cpu"), v1("cpuacct"), v1("cpuset"), v1("memory"), v1("blkio"), v1("pids"), v1("freezer"),
		{ID: procfs.UnifiedID, Version: 2, Controllers: []string{"hugetlb"}, Mount: "/sys/fs/cgroup/unified",
			Root: "/"},
	}
)

func v1(controllers ...string) host.Hierarchy {
	id := strings.Join(controllers, ",")
	return host.Hierarchy{ID: id, Version: 1, Controllers: controllers, Mount: "/sys/fs/cgroup/" + id, Root: "/"}
}

// modelled is a process of the model.
type modelled struct {
	k  *cgroupfake.Kernel
	id procfs.ID
}

func (p modelled) ID() procfs.ID { return p.id }
func (p modelled) Exit()         { p.k.Exit(p.id.PID) }
func (p modelled) Touch(bytes int64) bool {
	return p.k.Charge(p.id.PID, cgroupfake.Anonymous, bytes) == nil
}

func (p modelled) Realtime() error {
	tid, err := p.k.Thread(p.id.PID)
	if err != nil {
		return err
	}
	return p.k.SetRealtime(tid, true)
}

func model(hierarchies []host.Hierarchy, kernel host.Version) func(*testing.T) conformance.Subject {
	return func(*testing.T) conformance.Subject {
		k := cgroupfake.New(hierarchies, cgroupfake.Options{Kernel: kernel})
		return conformance.Subject{
			Tree: k.Tree, Root: "conformance", CPUs: idset.Set{0, 1}, Nodes: idset.Set{0}, Device: "7:0",
			Absent: "7:99",
			Spawn:  func(testing.TB) conformance.Process { return modelled{k, k.Spawn()} },
		}
	}
}

// kernels are those that the lab boots, and the newest.
var kernels = []host.Version{{}, {Major: 6, Minor: 1}, {Major: 5, Minor: 10}}

func run(t *testing.T, hierarchies []host.Hierarchy, uncovered ...string) {
	t.Helper()
	for _, kernel := range kernels {
		t.Run(fmt.Sprintf("%d.%d", kernel.Major, kernel.Minor), func(t *testing.T) {
			expectUncovered(t, conformance.Run(t, model(hierarchies, kernel)), uncovered...)
		})
	}
}

func TestModelLegacy(t *testing.T)  { run(t, legacy, "v2/") }
func TestModelUnified(t *testing.T) { run(t, unified, "v1/") }

func TestModelHybrid(t *testing.T) {
	run(t, hybrid, "v1/hugetlb/", "v2/cpu/", "v2/memory/", "v2/cpuset/", "v2/blkio/", "v2/pids/")
}

// expectUncovered fails unless every case that was not run has one of the prefixes, and each prefix a case.
func expectUncovered(t *testing.T, uncovered []string, prefixes ...string) {
	t.Helper()
	seen := make(map[string]bool)
	for _, name := range uncovered {
		found := false
		for _, prefix := range prefixes {
			if strings.HasPrefix(name, prefix) {
				seen[prefix], found = true, true
			}
		}
		if !found {
			t.Errorf("%s was not run", name)
		}
	}
	for _, prefix := range prefixes {
		if !seen[prefix] {
			t.Errorf("cases %s* were run though the host has no such hierarchy", prefix)
		}
	}
}
