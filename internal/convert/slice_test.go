package convert_test

import (
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy/resolve"

	"bulkhead/internal/convert/unitfile"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

func TestSlice(t *testing.T) { fixtures(t, "slice", unitfile.Import) }

// With shares alone or on both scales, the two slices of the ScyllaDB document stay 100:1.
func TestScyllaRatio(t *testing.T) {
	for _, name := range []string{"scylladb", "scylladb-v1"} {
		r, err := unitfile.Import(archive(t, "testdata/slice/"+name+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: r.Policy}})
		if err != nil {
			t.Fatal(err)
		}
		weights := map[string]policy.Weight{}
		for _, g := range p.Groups {
			if s, ok := g.Settings.Get(policy.KeyCPUWeight, ""); ok {
				weights[g.Slice] = s.Value.(policy.Weight)
			}
		}
		if server, helper := weights["scylla-server.slice"], weights["scylla-helper.slice"]; helper == 0 ||
			server != 100*helper {
			t.Errorf("%s: %d to %d", name, server, helper)
		}
	}
}

// On a host whose disks could weigh and do not, the document's policy is sound, and its IOWeight names no disk.
func TestScyllaChangesNoDisk(t *testing.T) {
	r, err := unitfile.Import(archive(t, "testdata/slice/scylladb.txtar"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: r.Policy}})
	if err != nil {
		t.Fatal(err)
	}
	f := &host.Facts{Systemd: true, BFQ: true, IOCost: true, MemTotal: 1 << 34, CPUs: idset.Set{0, 1},
		Hierarchies: []host.Hierarchy{{ID: "", Version: 2, Controllers: []string{"cpu", "memory", "blkio"}}},
		Devices: []blockdev.Device{{Name: "sda", Number: "8:0", Kind: blockdev.Disk, Size: 1 << 40,
			Scheduler: "none", Schedulers: []string{"none", "bfq"}}}}
	fitted, problems := resolve.Policy(p, f)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	helper, found := fitted.Groups[0].Settings.Get(policy.KeyIOWeight, "")
	if !found || helper.Value != policy.Weight(10) || helper.Dev != "" {
		t.Errorf("%s: io.weight is %v on %q", fitted.Groups[0].Path, helper.Value, helper.Dev)
	}
}

func FuzzSlice(f *testing.F) {
	seeds(f, "slice")
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range []string{"a-b.slice", "a-b.slice.d/x.conf", "a.service"} {
			sources := []policy.Source{{Path: name, Text: text}}
			r, err := unitfile.Import(sources)
			hold(t, sources, r, err)
			if err == nil {
				again(t, r)
			}
		}
	})
}
