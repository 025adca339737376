package convert_test

import (
	"testing"

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
