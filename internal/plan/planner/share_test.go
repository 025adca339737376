package planner

import (
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

func shareOf(t *testing.T, p plan.Plan, group string) plan.Share {
	t.Helper()
	for _, s := range p.Shares {
		if s.Group == group {
			return s
		}
	}
	t.Fatalf("no share of %q in %+v", group, p.Shares)
	return plan.Share{}
}

func near(got, want, by float64) bool { return math.Abs(got-want) <= by }

// The measured case of the design: two cores, a database beside 16 busy shells of one session. In a root group
// of the default weight it got 49 % of the machine, in a heavy one 98 %.
func TestSharesMatchTheMeasurement(t *testing.T) {
	for _, test := range []struct {
		weight             policy.Weight
		measured, computed float64
	}{{100, 49, 50}, {10000, 98, 99.01}} {
		in := input(cpuOnly(), group("mysql", nil))
		in.Facts.CPUs = idset.New(0, 1)
		in.Host.Weight = test.weight
		in.Observed.Siblings = []plan.Sibling{{Dir: cgroup.Dir{Hierarchy: "cpu", Path: "/"}, Tasks: 1}} // one session
		s := shareOf(t, Make(in), "mysql")
		if !near(s.Percent, test.measured, 1.5) || !near(s.Percent, test.computed, 0.01) ||
			!near(s.Guaranteed, s.Percent/50, 1e-9) {
			t.Errorf("root weight %d: %.2f cores, %.2f %% of the host; computed %v, measured %v", test.weight,
				s.Guaranteed, s.Percent, test.computed, test.measured)
		}
	}
}

func TestShares(t *testing.T) {
	cpu := func(pairs ...any) policy.Settings { return settings("group", pairs...) }
	beside := func(tasks int, weights ...int64) []plan.Sibling {
		all := []plan.Sibling{
			{Dir: cgroup.Dir{Hierarchy: "cpu", Path: "/"}, Tasks: tasks},
			{Dir: cgroup.Dir{Hierarchy: "memory", Path: "/"}, Tasks: 1000}, // another hierarchy competes for nothing
		}
		for _, w := range weights {
			all = append(all, plan.Sibling{Dir: cgroup.Dir{Hierarchy: "cpu", Path: "/g"}, Weight: w, Idle: w == 3})
		}
		return all
	}
	const sum = 3072.0 + 1024 + 3 // of a, b and idle
	for name, test := range map[string]struct {
		prepare func(*plan.Input)
		want    map[string]float64 // guaranteed, of four cores
		limit   map[string]float64
		against string
	}{
		"nobody beside": {
			want: map[string]float64{"": 2, "a": 2 * 3072 / sum, "a/x": 2 * 3072 / sum / 7, "b": 2 * 1024 / sum,
				"idle": 2 * 3 / sum},
			against: "one assumed competitor beside bulkhead's groups",
		},
		"beside tasks and groups": {
			prepare: func(in *plan.Input) { in.Observed.Siblings = beside(2, 1024, 3) },
			want:    map[string]float64{"": 4 * 1024.0 / (4*1024 + 3)},
			against: "2 other groups and 2 competitors directly in the root beside bulkhead's groups",
		},
		"one of each": {
			prepare: func(in *plan.Input) { in.Observed.Siblings = beside(1, 2048) },
			want:    map[string]float64{"": 1},
			against: "1 other group and 1 competitor directly in the root beside bulkhead's groups",
		},
		"a limit leaves the rest to the siblings": {
			prepare: func(in *plan.Input) {
				in.Classified.Groups[0].Settings = cpu("cpu.weight", policy.Weight(300), "cpu.limit", policy.Cores(1e6))
			},
			want:  map[string]float64{"": 2, "a": 1, "a/x": 1.0 / 7, "b": 1024.0 / 1027, "idle": 3.0 / 1027},
			limit: map[string]float64{"a": 1, "a/x": 1, "b": 0},
		},
		"its CPUs are a cap": {
			prepare: func(in *plan.Input) {
				in.Classified.Groups[0].Settings = cpu("cpu.weight", policy.Weight(300), "cpu.cpus",
					policy.IDs{Set: idset.New(3)})
			},
			want:  map[string]float64{"": 2, "a": 1},
			limit: map[string]float64{"a": 1, "a/x": 1},
		},
		"the reserve caps everything": {
			prepare: func(in *plan.Input) { in.Host.Weight, in.Host.Reserve.CPU = 10000, 3*policy.One },
			want:    map[string]float64{"": 1, "a": 3072 / sum},
			limit:   map[string]float64{"": 1, "a": 1, "b": 1},
		},
		"all below a limit": {
			prepare: func(in *plan.Input) {
				for i := range in.Classified.Groups {
					in.Classified.Groups[i].Settings = cpu("cpu.limit", policy.Cores(1e5))
				}
			},
			want: map[string]float64{"": 2, "a": 0.1, "b": 0.1, "idle": 0.1, "a/x": 0.05},
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(factsWith(v1("cpu"), v1("cpuset")),
				group("a", cpu("cpu.weight", policy.Weight(300))),
				group("a/x", cpu("cpu.weight", policy.Weight(50))), // 512 beside the leaf, which has 3072 as a
				group("b", cpu("cpu.weight", policy.Weight(100))),
				group("idle", cpu("cpu.idle", policy.Flag(true))),
			)
			in.Host.Weight = 100
			if test.prepare != nil {
				test.prepare(&in)
			}
			p := Make(in)
			for g, want := range test.want {
				s := shareOf(t, p, g)
				if !near(s.Guaranteed, want, 1e-9) || !near(s.Percent, want*25, 1e-6) {
					t.Errorf("%q has %v cores, %v %%, want %v", g, s.Guaranteed, s.Percent, want)
				}
				if test.against != "" && s.Against != test.against {
					t.Errorf("against %q, want %q", s.Against, test.against)
				}
			}
			for g, want := range test.limit {
				if s := shareOf(t, p, g); s.Limit != want {
					t.Errorf("%q is limited to %v cores, want %v", g, s.Limit, want)
				}
			}
		})
	}
}

// v2's weights are in another scale and give the same.
func TestSharesOnBothVersions(t *testing.T) {
	groups := []any{"cpu.weight", policy.Weight(200)}
	old, now := input(cpuOnly(), group("a", settings("group", groups...)), group("b", nil)),
		input(unifiedHost(), group("a", settings("group", groups...)), group("b", nil))
	old.Observed.Siblings = []plan.Sibling{{Dir: cgroup.Dir{Hierarchy: "cpu", Path: "/other"}, Weight: 5120}}
	now.Observed.Siblings = []plan.Sibling{{Dir: cgroup.Dir{Hierarchy: "unified", Path: "/other"}, Weight: 500}}
	for _, g := range []string{"", "a", "b"} {
		if x, y := shareOf(t, Make(old), g), shareOf(t, Make(now), g); !near(x.Guaranteed, y.Guaranteed, 1e-3) {
			t.Errorf("%q: %v cores on v1, %v on v2", g, x.Guaranteed, y.Guaranteed)
		}
	}
}

// Shares never exceed what there is: siblings together get at most their parent's, nobody more than its limit.
func TestSharesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := drawWish(t, 0, "A")
		in := plan.Input{Facts: unifiedHost(), Host: w.host}
		in.Classified.Groups = w.groups
		got, below := map[string]float64{}, map[string]float64{}
		for _, s := range Make(in).Shares {
			if s.Guaranteed < 0 || s.Guaranteed > 4 || s.Limit > 0 && s.Guaranteed > s.Limit+1e-9 {
				t.Fatalf("%+v", s)
			}
			got[s.Group] = s.Guaranteed
			if w.host.Root == "" {
				got[layout.RootGroup] = 4
			}
			if s.Group != layout.RootGroup {
				below[layout.ParentGroup(s.Group)] += s.Guaranteed
			}
		}
		for g, sum := range below {
			if sum > got[g]+1e-9 {
				t.Fatalf("the groups of %q get %v of its %v cores", g, sum, got[g])
			}
		}
	})
}

// Outermost groups compete with what is outside all groups and with each other, by their own weights.
func TestSharesWithoutARootGroup(t *testing.T) {
	in := input(factsWith(v1("cpu")),
		group("db", settings("role database", "cpu.weight", policy.Weight(1000))),
		group("batch", settings("role batch", "cpu.idle", policy.Flag(true))),
	)
	in.Host = policy.HostPart{}
	in.Observed.Siblings = []plan.Sibling{{Dir: cgroup.Dir{Hierarchy: "cpu", Path: "/"}, Tasks: 2}}
	const sum = 10240 + 3 + 2*1024
	p := Make(in)
	for g, want := range map[string]float64{"db": 4 * 10240.0 / sum, "batch": 4 * 3.0 / sum} {
		if got := shareOf(t, p, g).Guaranteed; !near(got, want, 1e-9) {
			t.Errorf("%s can count on %v cores, want %v", g, got, want)
		}
	}
	if len(p.Shares) != 2 {
		t.Errorf("shares of %+v, want of the two groups alone", p.Shares)
	}
}

// Below a root group a quota over all groups keeps the reserve only where their limits do not, and a plan says what it
// costs.
func TestReserveBelowARootGroup(t *testing.T) {
	limit := func(cores float64) policy.Settings {
		return settings("group", "cpu.limit", policy.Cores(cores*1e6))
	}
	idle := settings("role batch", "cpu.idle", policy.Flag(true))
	for name, test := range map[string]struct {
		a, b  policy.Settings
		quota bool
	}{
		"limits leave it": {limit(2), limit(1.5), false},
		"limits do not":   {limit(2), limit(2), true},
		"one without":     {limit(2), nil, true},
		"an idle one, which competes with the rest by way of the root group": {limit(2), idle, true},
	} {
		in := input(legacyHost(), group("a", test.a), group("b", test.b))
		in.Host = policy.HostPart{Root: "r", Reserve: policy.Reserve{CPU: policy.One / 2}}
		p := Make(in)
		said := slices.ContainsFunc(p.Notes, func(n plan.Note) bool {
			return strings.Contains(n.Text,
				"a quota over all")
		})
		wanted := slices.ContainsFunc(p.Want, func(w plan.Wanted) bool {
			return w.File().Dir.Path == "/r" && w.File().Name == "cpu.cfs_quota_us"
		})
		if said != test.quota || wanted != test.quota {
			t.Errorf("%s: a quota is wanted: %v, and said: %v; want %v", name, wanted, said, test.quota)
		}
	}
}

// Without a root group limits that leave the reserve, or weights, keep it; a plan says when neither does.
func TestReserveWithoutARootGroup(t *testing.T) {
	limit := func(cores float64, size policy.Bytes) policy.Settings {
		return settings("group", "cpu.weight", policy.Weight(1000), "cpu.limit", policy.Cores(cores*1e6), "memory.max",
			size)
	}
	weight := func(w policy.Weight) policy.Settings { return settings("group", "cpu.weight", w) }
	idle := settings("role batch", "cpu.idle", policy.Flag(true), "memory.max", policy.Bytes(1<<30))
	half := policy.Reserve{CPU: policy.One / 2}
	memory := policy.Reserve{Memory: policy.Bytes(2 << 30)}
	for name, test := range map[string]struct {
		reserve policy.Reserve
		a, b    policy.Settings
		want    string // of the note, "" for none
	}{
		"nothing asked":          {policy.Reserve{}, weight(10000), weight(10000), ""},
		"limits leave it":        {half, limit(2, 1<<30), limit(1.5, 1<<30), ""},
		"limits do not":          {half, limit(2, 1<<30), limit(2, 1<<30), "gets 0.19"},
		"idle needs no limit":    {half, limit(3.5, 1<<30), idle, ""},
		"small weights leave it": {half, weight(100), weight(100), ""},
		"large weights do not":   {half, weight(1000), weight(1000), "gets 0.19"},
		"memory left":            {memory, limit(1, 8<<30), limit(1, 6<<30), ""},
		"memory taken":           {memory, limit(1, 8<<30), limit(1, 8<<30), "come to more together"},
		"memory without a limit": {memory, limit(1, 8<<30), weight(1), "b without a limit"},
		"idle takes memory, too": {memory, limit(1, 14<<30), idle, "come to more together"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(legacyHost(), group("a", test.a), group("b", test.b))
			in.Host = policy.HostPart{Reserve: test.reserve}
			var got []string
			for _, n := range Make(in).Notes {
				if strings.Contains(n.Text, "host.reserve") {
					got = append(got, n.Text)
				}
			}
			if (len(got) == 0) != (test.want == "") || !strings.Contains(strings.Join(got, "\n"), test.want) ||
				len(got) > 1 {
				t.Errorf("notes %q, want one with %q", got, test.want)
			}
		})
	}
}
