package planner

import (
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/desired"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// lowering plans a limit of 2 GiB for a group that has one of 4 GiB, and maybe a memory.high.
func lowering(h host.Hierarchy, use int64, high policy.Value) (plan.Plan, cgroup.Dir) {
	with := func(most policy.Bytes) policy.Settings {
		s := settings("group", "memory.max", most)
		if high != nil {
			s = s.With(policy.Setting{Key: "memory.high", Value: high})
		}
		return s
	}
	in := input(factsWith(h), group("a", with(4<<30)))
	in.Host.Reclaim = policy.Duration(7 * time.Second)
	inPlace(&in)
	dir := cgroup.Dir{Hierarchy: h.ID, Path: "/bulkhead/a"}
	if _, asked := in.Observed.Dirs[dir]["memory.high"]; h.Version == 2 && !asked {
		in.Observed.Dirs[dir]["memory.high"] = "max"
	}
	inUse(&in).current = map[cgroup.Dir]int64{dir: use}
	in.Classified = groupsOf(group("a", with(2<<30)))
	return Make(in), dir
}

// On cgroup v2 memory.high goes first and in steps, memory.max waits until there is less in use, and memory.high is
// given back.
func TestMemoryIsLoweredByHigh(t *testing.T) {
	p, _ := lowering(v2("memory"), 3<<30, nil)
	if len(p.Steps) != descentSteps+2 {
		t.Fatalf("%d writes, want %d: %v", len(p.Steps), descentSteps+2, brief(p))
	}
	last := int64(3 << 30)
	for i, s := range p.Steps[:descentSteps] {
		to := desired.Number(s.New)
		if s.File().Name != "memory.high" || to >= last || s.Risk != "may slow the group" || s.Unit != "" {
			t.Errorf("write %d: %+v, want memory.high falling from %d", i, s, last)
		}
		if i > 0 && (s.Reclaim == nil || s.Reclaim.Below < last || s.Reclaim.Below > last+64<<20 ||
			s.Reclaim.Push != s.Old || s.Reclaim.Within != 7*time.Second) {
			t.Errorf("write %d waits for %+v, want what the one before leaves", i, s.Reclaim)
		}
		last = to
	}
	if last >= 2<<30 || last < 2<<30-64<<20 {
		t.Errorf("memory.high goes to %d, want a little below the limit", last)
	}
	limit, back := p.Steps[descentSteps], p.Steps[descentSteps+1]
	if limit.File().Name != "memory.max" || limit.New != "2147483648" || limit.Old != "4294967296" ||
		limit.Reclaim == nil ||
		limit.Reclaim.Below != 2<<30 || desired.Number(limit.Reclaim.Push) != last ||
		limit.Reclaim.Use != "memory.current" {
		t.Errorf("the limit: %+v %+v", limit, limit.Reclaim)
	}
	if back.File().Name != "memory.high" || back.New != "max" || back.Reclaim != nil {
		t.Errorf("at the end: %+v", back)
	}
	if text := strings.Join(strings.Fields(plan.Render(p, plan.RenderOptions{})), " "); !strings.Contains(text,
		"waits: 7s at most, until no more than 2 GiB are in use; else everything is undone") {
		t.Errorf("the plan does not say what it waits for:\n%s", text)
	}
}

func TestMemoryIsLoweredElsewise(t *testing.T) {
	files := func(p plan.Plan) (names []string) {
		for _, s := range p.Steps {
			names = append(names, s.File().Name)
		}
		return slices.Compact(names)
	}
	for name, c := range map[string]struct {
		h    host.Hierarchy
		use  int64
		high policy.Value
		want string
		n    int // writes
	}{
		"nothing has to go": {v2("memory"), 1 << 30, nil, "memory.max", 1},
		"a little":          {v2("memory"), 2<<30 + 10<<20, nil, "memory.high memory.max memory.high", 3},
		// What a group asks for of memory.high is as good.
		"high is lower already": {v2("memory"), 3 << 30, policy.Bytes(1 << 30), "memory.max", 1},
		"v1":                    {v1("memory"), 3 << 30, nil, "memory.limit_in_bytes", descentSteps},
		"v1, a little":          {v1("memory"), 2<<30 + 10<<20, nil, "memory.limit_in_bytes", 1},
		"v1, nothing":           {v1("memory"), 1 << 30, nil, "memory.limit_in_bytes", 1},
		"much":                  {v2("memory"), 3 << 40, nil, "memory.high memory.max memory.high", descentMost + 2},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := lowering(c.h, c.use, c.high)
			if got := strings.Join(files(p), " "); got != c.want || len(p.Steps) != c.n {
				t.Errorf("%d writes to %s, want %d to %s", len(p.Steps), got, c.n, c.want)
			}
			for _, s := range p.Steps {
				waits := c.use > 2<<30 && (s.File().Name == "memory.max" || s.File().Name == "memory.limit_in_bytes")
				if waits != (s.Reclaim != nil) && s.File().Name != "memory.high" {
					t.Errorf("%s waits for %+v", s.File().Name, s.Reclaim)
				}
				if s.Reclaim != nil && strings.HasPrefix(c.h.ID, "memory") && s.Reclaim.Below != 0 {
					t.Errorf("v1 waits before the write that reclaims: %+v", s.Reclaim)
				}
			}
		})
	}
}

// The limit on memory and swap together waits, too.
func TestMemswWaits(t *testing.T) {
	limited := func(n policy.Bytes) classify.Group {
		return group("a", settings("group", "memory.max", n, "memory.swap", policy.Bytes(1<<30)))
	}
	in := input(factsWith(v1("memory")), limited(4<<30))
	inPlace(&in)
	inUse(&in).current = map[cgroup.Dir]int64{{Hierarchy: "memory", Path: "/bulkhead/a"}: 1 << 30}
	in.Classified = groupsOf(limited(2 << 30))
	for _, s := range Make(in).Steps {
		if s.File().Name == fileMemsw {
			if s.Reclaim == nil || s.Reclaim.To != 3<<30 || s.Reclaim.Within != DefaultReclaim {
				t.Errorf("waits for %+v", s.Reclaim)
			}
			return
		}
	}
	t.Error("no write of " + fileMemsw)
}

// A release raises in the opposite order: the hard limit, and then memory.high.
func TestReleaseRaisesInTheOppositeOrder(t *testing.T) {
	in := input(factsWith(v2("memory")), group("a",
		settings("group", "memory.max", policy.Bytes(2<<30), "memory.high", policy.Bytes(1<<30))))
	inPlace(&in)
	in.Release = []string{layout.RootGroup}
	var order []string
	for _, s := range Make(in).Steps {
		if s.File().Name == "memory.max" || s.File().Name == "memory.high" {
			order = append(order, s.File().Name+" "+s.New)
		}
	}
	if want := []string{"memory.max max", "memory.high max"}; !slices.Equal(order, want) {
		t.Errorf("raised in the order %v, want %v", order, want)
	}
}

// A limit on a PostgreSQL says what an OOM kill there costs.
func TestPostgreSQLRestarts(t *testing.T) {
	in := input(factsWith(v2("memory")), group("pg", settings("group", "memory.max", policy.Bytes(2<<30))),
		group("pg/x", nil), group("my", settings("group", "memory.max", policy.Bytes(1<<30))))
	in.Classified.Placements = append(in.Classified.Placements,
		classify.Placement{Process: proc(100, 1, "postgres", in.Facts), Group: "pg/x", Rule: "a rule"})
	var told []string
	for _, n := range Make(in).Notes {
		if strings.Contains(n.Text, "PostgreSQL restarts all") {
			told = append(told, n.Group)
		}
	}
	if !slices.Equal(told, []string{"pg"}) {
		t.Errorf("said of %v", told)
	}
}
