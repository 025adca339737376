package knob

import (
	"fmt"

	"bulkhead/internal/knob/format"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
)

func cpusetRows() []*Row {
	cpus := Row{
		Controller: "cpuset", File: "cpuset.cpus", Keys: []policy.Key{policy.KeyCPUCPUs, policy.KeyCPUNUMA},
		Unit: "list of CPUs", Descends: true,
		Up: 1, Down: 61, Risk: RiskSlow, serves: []policy.Key{policy.KeyCPUCPUs, policy.KeyCPUNUMA},
		needed: anyOf(policy.KeyCPUCPUs, policy.KeyCPUNUMA), Encode: encodeCPUs,
	}
	mems := Row{
		Controller: "cpuset", File: "cpuset.mems", Keys: []policy.Key{policy.KeyMemoryNUMA}, Unit: "list of NUMA nodes",
		Descends: true,
		Up:       2, Down: 60, needed: anyOf(policy.KeyMemoryNUMA), Encode: encodeMems,
	}
	return []*Row{
		on(1, "", cpus, func(r *Row) {
			r.Seed, r.form = true, format.IDList{Noun: "CPU", Empty: "none"}
		}),
		on(2, "", cpus, func(r *Row) {
			r.Since, r.form = "5.0", format.IDList{Noun: "CPU", Empty: "as the parent", Wide: true}
			r.properties = []string{"AllowedCPUs"}
		}),
		on(1, "", mems, func(r *Row) {
			r.Seed, r.form = true, format.IDList{Noun: "node", Empty: "none"}
			r.Reach = "memory that is already there stays on its node (cpuset.memory_migrate is 0)"
		}),
		on(2, "", mems, func(r *Row) {
			r.Since, r.form = "5.0", format.IDList{Noun: "node", Empty: "as the parent", Wide: true}
			r.properties = []string{"AllowedMemoryNodes"}
			r.Risk = RiskMigrate
		}),
	}
}

// encodeCPUs gives the CPUs of a group: those it lists, else those of its NUMA nodes. "max" for both
// is the empty list, which on v1 stands for the nearest ancestor's (Seed).
func encodeCPUs(in Input) (string, bool, error) {
	cpus, limited, setCPUs := get[policy.IDs](in.Settings, policy.KeyCPUCPUs, "")
	if limited {
		return cpus.Set.String(), true, nil
	}
	nodes, limited, setNodes := get[policy.IDs](in.Settings, policy.KeyCPUNUMA, "")
	if !limited {
		return "", setCPUs || setNodes, nil
	}
	var union idset.Set
	for _, id := range nodes.Set {
		if in.Facts == nil {
			return "", true, fmt.Errorf("encode cpu.numa %q: the host's nodes are not known", nodes)
		}
		node, ok := in.Facts.Node(id)
		if !ok {
			return "", true, fmt.Errorf("encode cpu.numa %q: this host has no node %d", nodes, id)
		}
		union = union.Union(node.CPUs)
	}
	if len(union) == 0 {
		return "", true, fmt.Errorf("encode cpu.numa %q: no CPU is online there", nodes)
	}
	return union.String(), true, nil
}

func encodeMems(in Input) (string, bool, error) {
	nodes, _, set := get[policy.IDs](in.Settings, policy.KeyMemoryNUMA, "")
	return nodes.Set.String(), set, nil
}
