package outside_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/outside"
)

// value is a target of one value, which may have left something behind.
type value struct {
	now  string
	left bool
}

func (v *value) Read(context.Context, string) (string, error) { return v.now, nil }
func (v *value) Write(_ context.Context, _, now string) error { v.now, v.left = now, false; return nil }
func (v *value) Same(_, want, got string) bool                { return want == got }
func (v *value) Left(string) bool                             { return v.left }
func (v *value) Undo(context.Context, change.Change) (bool, error) {
	panic("the caller is settled first")
}

// box is a process outside, that writes while it is in a sandbox, and one that outlived its agent.
type box struct {
	*value
	sandboxed bool
	late      string
	calls     []string
}

func (b *box) Write(ctx context.Context, t change.Target, now string) (bool, error) {
	b.calls = append(b.calls, string(t.Kind)+" "+t.Addr+" "+now)
	if b.sandboxed {
		return true, b.value.Write(ctx, t.Addr, now)
	}
	return false, nil
}

func (b *box) Settle(context.Context) error {
	if b.late != "" {
		b.now, b.late = b.late, ""
	}
	return nil
}

// A value is written outside of a sandbox, and by this process where there is none; an undo sees what a process that
// outlived its agent wrote, and takes away what it left.
func TestActuator(t *testing.T) {
	for _, sandboxed := range []bool{false, true} {
		b := &box{value: &value{now: "old"}, sandboxed: sandboxed}
		a := outside.Actuator{Actuator: b.value, Kind: "k", Caller: b}
		c := change.Of(change.Target{Kind: "k", Addr: "a"}, "old", "new")
		err := change.Set(t.Context(), a, c.Target, "new")
		if err != nil || !slices.Equal(b.calls, []string{"k a new"}) {
			t.Errorf("sandboxed %t: %v, %q", sandboxed, err, b.calls)
		}
		b.now, b.late, b.left = "old", "new", true
		if undone, err := a.Undo(t.Context(), c); !undone || err != nil || b.now != "old" || b.left {
			t.Errorf("sandboxed %t: undone %t, %v: it is %q, left %t", sandboxed, undone, err, b.now, b.left)
		}
		b.left = true // killed before the value was in place
		if undone, err := a.Undo(t.Context(), c); undone || err != nil || b.now != "old" || b.left {
			t.Errorf("sandboxed %t: undone %t, %v: it is %q, left %t", sandboxed, undone, err, b.now, b.left)
		}
	}
}

// parted is a value in two places.
type parted struct {
	value
	other string
}

func (p *parted) Read(context.Context, string) (string, error) {
	if p.now != p.other {
		return "", change.Gone("they differ")
	}
	return p.now, nil
}

func (p *parted) Write(_ context.Context, _, now string) error { p.now, p.other = now, now; return nil }
func (p *parted) Half(c change.Change) bool                    { return p.now != p.other && p.other == c.Old }

// What a write that was cut off left in a part of the places is undone in all, and what somebody else has there is not.
func TestHalf(t *testing.T) {
	for other, undone := range map[string]bool{"old": true, "another": false} {
		p := &parted{value{now: "new"}, other}
		a := outside.Actuator{Actuator: p, Kind: "k"}
		c := change.Of(change.Target{Kind: "k", Addr: "a"}, "old", "new")
		if got, err := a.Undo(t.Context(), c); got != undone || err != nil || (p.now == "old") != undone {
			t.Errorf("%s: undone %t, %v: %q and %q", other, got, err, p.now, p.other)
		}
	}
}

func TestSandboxed(t *testing.T) {
	for own, want := range map[string]bool{"mnt:[1]": false, "mnt:[2]": true, "": false} {
		dir := t.TempDir()
		for process, ns := range map[string]string{"1": "mnt:[1]", "self": own} {
			at := filepath.Join(dir, "proc", process, "ns")
			if err := os.MkdirAll(at, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(ns, filepath.Join(at, "mnt")); err != nil && ns != "" {
				t.Fatal(err)
			}
		}
		if got := outside.Sandboxed(sysroot.New(dir)); got != want {
			t.Errorf("%q: %t", own, got)
		}
	}
}
