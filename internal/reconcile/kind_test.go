package reconcile

import (
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/apply"
	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/host"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
	"bulkhead/internal/verify"
)

// dialed is a host on which a policy wants the bass of a dial to be 11.
type dialed struct {
	*Reconciler
	t     *testing.T
	dials *conformance.Dials
	mode  policy.OnConflict
	left  []state.Conflict
}

var bass = policy.Setting{Key: "tune.bass", Value: policy.Count(11), From: "host.tune"}

func newDialed(t *testing.T, mode policy.OnConflict) *dialed {
	t.Helper()
	c, err := transaction.Open(transaction.Options{State: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	dials := &conformance.Dials{Values: map[string]string{"bass": "3"}}
	return &dialed{Reconciler: New(c), t: t, mode: mode, dials: dials}
}

// look takes a view in, and plans as the room would that wants the value: what differs and is not left is written.
func (d *dialed) look() *transaction.View {
	d.t.Helper()
	target := conformance.Dial("bass")
	v := &transaction.View{
		Snapshot:  &snapshot.Snapshot{Facts: &host.Facts{BootID: "b"}, Policy: &policy.Policy{}},
		Actuators: change.Actuators{conformance.KindDial: d.dials}, Conflicts: d.left,
	}
	v.Policy.Agent.OnConflict = d.mode
	v.Leave(d.Now())
	v.Plan.Want = []plan.Wanted{{Target: target, Group: "host", Value: "11", Setting: bass}}
	if err := v.ReadWanted(d.t.Context()); err != nil {
		d.t.Fatal(err)
	}
	now, there := v.Observed.Held(target)
	if there && !v.Actuators.Same(target, "11", now) && v.Left[target] == "" {
		v.Plan.Steps = []plan.Step{{Change: change.Of(target, now, "11"), Group: "host", Setting: bass.Key,
			Reason: plan.Reason(bass)}}
	}
	return v
}

// pass is one look that puts right what differs, as an agent's.
func (d *dialed) pass() *transaction.View {
	d.t.Helper()
	v := d.look()
	if err := d.handleConflicts(d.t.Context(), v, &state.Documents{Conflicts: d.left}); err != nil {
		d.t.Fatal(err)
	}
	d.left = v.Conflicts
	v = d.look()
	d.run(v.Plan)
	d.memory.settleLook(v, nil)
	return v
}

func (d *dialed) run(p plan.Plan) {
	d.t.Helper()
	lock, err := d.Store.Lock("look", "agent")
	if err != nil {
		d.t.Fatal(err)
	}
	defer lock.Release()
	r := apply.Runner{Actuators: change.Actuators{conformance.KindDial: d.dials}, Journal: d.Store, Boot: "b"}
	if _, err := r.Run(d.t.Context(), p, apply.Options{Verb: "look", By: "agent"}); err != nil {
		d.t.Fatal(err)
	}
}

// limit is what verify says.
func (d *dialed) limit() verify.Limit {
	v := d.look()
	s := verify.Snapshot{Facts: v.Facts, Plan: v.Plan, Observed: v.Observed, Actuators: v.Actuators,
		Conflict: v.ConflictOf}
	return s.Limit("host", bass)
}

// A wanted value of a kind that is an actuator and nothing else is put right, verified, named as a conflict when
// somebody else changes it, left to them where the policy says so, shown, and told of in the history.
// TestNewKindIsAnActuator in package apply has its crashes, faults and undo.
func TestNewKindIsKeptRight(t *testing.T) {
	d := newDialed(t, policy.ConflictEnforce)
	if l := d.limit(); l.OK || l.File != "bass" || l.InForce != "3" || l.AskedAs != "11" {
		t.Errorf("before: %+v", l)
	}
	if text := plan.Render(d.look().Plan, plan.RenderOptions{Form: plan.FormBrief}); !strings.Contains(text,
		"tune.bass  bass: 3 -> 11  host.tune\n") {
		t.Errorf("in brief:\n%s", text)
	}
	d.pass()
	if l := d.limit(); !l.OK || d.dials.Values["bass"] != "11" {
		t.Errorf("after: %+v, %v", l, d.dials.Values)
	}
	if v := d.pass(); len(v.Plan.Steps) > 0 || len(d.left) > 0 {
		t.Errorf("settled: %+v, %v", v.Plan.Steps, d.left)
	}
	d.dials.Values["bass"] = "5"
	d.pass()
	if len(d.left) != 1 || d.left[0].Where() != conformance.Dial("bass") || d.left[0].Found != "5" ||
		!strings.Contains(d.left[0].String(), `host tune.bass: dial "bass" held "5" instead of "11"`) {
		t.Errorf("conflicts %v", d.left)
	}
	if d.dials.Values["bass"] != "11" {
		t.Errorf("not put right: %v", d.dials.Values)
	}
	entries, err := d.Store.History()
	if err != nil || len(entries) != 2 {
		t.Fatalf("history %+v, %v", entries, err)
	}
	var text strings.Builder
	render.History(&text, entries, true)
	for _, want := range []string{"dial bass: 3 -> 11\n", "dial bass: 5 -> 11\n"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the history has no %q:\n%s", want, text.String())
		}
	}
	d.run(plan.Plan{Steps: []plan.Step{{Change: change.Of(conformance.Dial("bass"), "11", "3")}}})
	if !maps.Equal(d.dials.Values, map[string]string{"bass": "3"}) ||
		d.Store.InBoot("b").Changed(conformance.Dial("bass")) {
		t.Errorf("given back: %v", d.dials.Values)
	}
}

func TestNewKindIsLeftToOthers(t *testing.T) {
	d := newDialed(t, policy.ConflictYield)
	d.pass()
	d.dials.Values["bass"] = "5"
	for range 2 {
		if v := d.pass(); len(v.Plan.Steps) > 0 || d.dials.Values["bass"] != "5" {
			t.Fatalf("%+v, %v", v.Plan.Steps, d.dials.Values)
		}
	}
	if l := d.limit(); l.OK || !strings.Contains(l.Reason, "left as it is until the next apply") {
		t.Errorf("%+v", l)
	}
	d.left[0].Last = time.Time{}
	d.dials.Values["bass"] = "11"
	if d.pass(); len(d.left) > 0 {
		t.Errorf("once they gave it back: %v", d.left)
	}
}
