package planner

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

func TestFastMoves(t *testing.T) {
	const on, off = "write unified://favordynmods on", "write unified://favordynmods off"
	for name, c := range map[string]struct {
		kernel   host.Version
		option   bool // is set already
		ours     bool // by us
		asked    bool
		readOnly bool
		steps    []string
		final    bool
		note     string
	}{
		"asked": {kernel: host.Version{Major: 6, Minor: 1}, asked: true, steps: []string{on}},
		"cannot be taken back": {kernel: host.Version{Major: 6, Minor: 18}, asked: true, steps: []string{on},
			final: true},
		"not asked":       {kernel: host.Version{Major: 6, Minor: 1}},
		"on already":      {kernel: host.Version{Major: 6, Minor: 1}, option: true, asked: true},
		"somebody else's": {kernel: host.Version{Major: 6, Minor: 1}, option: true},
		"no longer asked": {kernel: host.Version{Major: 6, Minor: 1}, option: true, ours: true,
			steps: []string{off}},
		"no longer asked, too new": {kernel: host.Version{Major: 6, Minor: 18}, option: true, ours: true,
			steps: []string{off}, note: "until it is booted again"},
		"off again by another": {kernel: host.Version{Major: 6, Minor: 1}, ours: true},
		"too old": {kernel: host.Version{Major: 5, Minor: 10}, asked: true,
			note: "has no such option; 6.0 brought it"},
		"read-only": {kernel: host.Version{Major: 6, Minor: 1}, asked: true, readOnly: true, note: "mounted read-only"},
	} {
		t.Run(name, func(t *testing.T) {
			f := factsWith(v2("cpu"))
			f.Kernel = c.kernel
			h := &f.Hierarchies[0]
			h.ReadOnly = c.readOnly
			if c.option {
				h.Options = append(slices.Clone(h.Options), cgroup.FavorDynmods)
			}
			in := input(f)
			in.Agent = policy.AgentPart{FastMoves: c.asked}
			in.Observed.Originals.FavorDynmods = c.ours
			p := Make(in)
			wantMoves(t, p, c.steps)
			if len(p.Steps) > 0 && (p.Steps[0].Final != "") != c.final {
				t.Errorf("final: %q", p.Steps[0].Final)
			}
			said := slices.ContainsFunc(p.Notes,
				func(n plan.Note) bool { return c.note != "" && strings.Contains(n.Text, c.note) })
			if said != (c.note != "") {
				t.Errorf("notes %+v", p.Notes)
			}
			// The emergency exit gives it back, too, and only what is ours.
			in.Release = []string{layout.RootGroup}
			var back []string
			if c.ours && c.option {
				back = []string{off}
			}
			wantMoves(t, Make(in), back)
			in.Release = []string{"a"}
			wantMoves(t, Make(in), nil)
		})
	}
}

func wantMoves(t *testing.T, p plan.Plan, want []string) {
	t.Helper()
	got := slices.DeleteFunc(brief(p), func(s string) bool { return !strings.Contains(s, cgroup.FavorDynmods) })
	if !slices.Equal(got, want) {
		t.Errorf("steps %q, want %q", got, want)
	}
}

func TestFastMovesWithoutCgroup2(t *testing.T) {
	in := input(legacyHost())
	in.Agent.FastMoves = true
	p := Make(in)
	if len(p.Steps) > 0 || !slices.ContainsFunc(p.Notes,
		func(n plan.Note) bool { return n.NotEnforced && strings.Contains(n.Text, "mount -t cgroup2") }) {
		t.Errorf("steps %q, notes %+v", brief(p), p.Notes)
	}
}
