package planner

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// A budget on a flat hierarchy is split between the directories that hold processes.
func TestFlatBudget(t *testing.T) {
	rate := func(mb int) policy.Settings {
		return settings("group", "io.read.bandwidth@8:0", policy.Rate(mb*1e6))
	}
	f := factsWith(v1("blkio"), v1("cpu"))
	in := input(f, group("a", rate(100)), group("a/x", rate(30)),
		group("a/y", settings("group", "io.write.iops@8:0", policy.IOPS(7))),
		group("a/y/p", rate(50)), group("a/z", nil), group("b", rate(5)))
	p := Make(in)
	got := map[string]string{}
	for _, w := range p.Want {
		if strings.HasSuffix(w.File().Name, "read_bps_device") {
			got[w.File().Dir.Path] = w.Value
		}
	}
	// a: 100 = own 35, where a/z sits too, + x 30 + y 35; y: 35 = own 17.5 + p 17.5, for p asks for more.
	for path, want := range map[string]string{
		"/bulkhead/a": "35000000", "/bulkhead/a/x": "30000000", "/bulkhead/a/y": "17500000",
		"/bulkhead/a/y/p": "17500000", "/bulkhead/b": "5000000",
	} {
		if got[path] != want {
			t.Errorf("%s may read %s B/s, want %s", path, got[path], want)
		}
	}
	wantNote(t, p, plan.Note{Group: "a", Key: "io.read.bandwidth",
		Text: "io.read.bandwidth 100MB/s on 8:0 does not reach the groups below it in the blkio hierarchy and is " +
			"split by use, at present: own processes 35MB/s + x 30MB/s + y 35MB/s"})
	wantNote(t, p, plan.Note{Group: "a/y", Key: "io.read.bandwidth",
		Text: "io.read.bandwidth 35MB/s on 8:0 does not reach the groups below it in the blkio hierarchy and is " +
			"split by use, at present: own processes 17.5MB/s + p 17.5MB/s of 50MB/s asked"})

	in.Facts = unifiedHost()
	for _, w := range Make(in).Want {
		if f := w.File(); f.Name == "io.max" && f.Path == "/bulkhead/a" &&
			!strings.HasPrefix(w.Value, "rbps=100000000 ") {
			t.Errorf("on v2, where io.max descends, a gets %q", w.Value)
		}
	}
}

// Below our root the parts of a flat budget never add up to more than the limit above them.
func TestFlatBudgetNeverExceeded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWish(t, 0, "A")
		in := plan.Input{Facts: legacyHost(), Host: w.host}
		in.Classified.Groups = w.groups
		sums, limits := map[string]int64{}, map[string]int64{}
		const key, device = policy.KeyIOReadBandwidth, "8:16"
		for _, g := range w.groups {
			if s, ok := g.Settings.Get(key, device); ok {
				limits[g.Path] = int64(s.Value.(policy.Rate))
			}
		}
		for _, want := range Make(in).Want {
			if want.Setting.Key == key && want.File().Key == device {
				for g := want.Group; g != layout.RootGroup; g = layout.ParentGroup(g) {
					sums[g] += desired.Number(want.Value)
				}
			}
		}
		for g, limit := range limits {
			if sums[g] > limit || sums[g] == 0 {
				t.Fatalf("%s may read %d B/s, its directories %d", g, limit, sums[g])
			}
		}
	})
}
