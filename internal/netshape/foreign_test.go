package netshape

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/linux/tc"
)

func TestForeign(t *testing.T) {
	tbf := tc.Record{Kind: "tbf", Handle: 0x10000, Parent: tc.AtRoot, Options: []byte{1, 2, 3, 4}}
	clsact := tc.Record{Kind: "clsact", Handle: tc.IngressHandle, Parent: tc.AtIngress}
	own := tc.Record{Kind: "fq_codel", Handle: 0, Parent: tc.AtRoot} // the kernel's
	both := Wanted{Device: "eth0", Groups: []Group{{Name: "a", Slot: 1, Egress: Share{Max: tc.Mbit},
		Ingress: Share{Max: tc.Mbit}, Ports: []uint16{1}}}}

	var foreign *ForeignError
	_, err := Plan(both, newFake(tbf, clsact).look())
	if !errors.As(err, &foreign) || strings.Join(foreign.Found, "; ") != "qdisc tbf 1: at root; qdisc clsact ffff:" {
		t.Errorf("got %v", err)
	}
	if _, err := Plan(both, newFake(own).look()); err != nil {
		t.Errorf("the kernel's own: %v", err)
	}

	both.Replace = true
	f := newFake(tbf, clsact)
	before := summary(f.look())
	s := f.look()
	original, err := s.Foreign(both)
	if err != nil {
		t.Fatal(err)
	}
	steps, err := Plan(both, s)
	if err == nil {
		err = f.run(steps)
	}
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Plan(both, f.look()); err != nil || len(again) > 0 {
		t.Errorf("a second time: %v %v", again, err)
	}
	down, err := Plan(Wanted{Device: "eth0", Original: original}, f.look())
	if err == nil {
		err = f.run(down)
	}
	if err != nil {
		t.Fatal(err)
	}
	if after := summary(f.look()); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
	// The other way back: the steps' own undo.
	f = newFake(tbf, clsact)
	steps, _ = Plan(both, f.look())
	if err := f.run(steps); err != nil {
		t.Fatal(err)
	}
	for _, s := range slices.Backward(steps) {
		for _, u := range s.Undo {
			if err := f.Do(u); err != nil {
				t.Fatal(err)
			}
		}
	}
	if after := summary(f.look()); after != before {
		t.Errorf("undone: before\n%s\nafter\n%s", before, after)
	}
}

// A foreign tree comes back parents first, without what makes itself.
func TestForeignTree(t *testing.T) {
	d := tc.Device{Link: tc.Link{Name: "eth0", Index: 2},
		Qdiscs: []tc.Record{{Kind: "fq", Handle: 0x20000, Parent: 0x10011},
			{Kind: "htb", Handle: 0x10000, Parent: tc.AtRoot}},
		Classes: []tc.Record{{Kind: "htb", Handle: 0x10011, Parent: 0x10001},
			{Kind: "htb", Handle: 0x10001, Parent: tc.AtRoot},
			{Kind: "fq", Handle: 0x20001, Parent: 0x20000}},
		Filters: []tc.Record{
			{Kind: "u32", Parent: 0x10000, Info: tc.FilterInfo(49152, tc.ProtoIPv4)},
			{Kind: "u32", Handle: 0x80000000, Parent: 0x10000, Info: tc.FilterInfo(49152, tc.ProtoIPv4)},
			{Kind: "u32", Handle: 0x80000800, Parent: 0x10000, Info: tc.FilterInfo(49152, tc.ProtoIPv4)},
		}}
	s := State{Device: d}
	got, err := s.Foreign(Wanted{Replace: true, Groups: []Group{{Egress: Share{Max: 1}}}})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, c := range got.Egress {
		lines = append(lines, c.String())
	}
	want := "replace qdisc htb 1: on eth0 at root\nadd class 1:1 on eth0 below 1:\nadd class 1:11 on eth0 below " +
		"1:1\nadd qdisc fq 2: on eth0 at 1:11\n" +
		"add filter u32 49152 on eth0 at 1:"
	if strings.Join(lines, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), want)
	}
}

// A filter that somebody adds to our hook is left alone: limits change beside it, and the hook stays for it in the end.
func TestFilterOfOthersInOurHook(t *testing.T) {
	w := Wanted{Device: "eth0", Groups: []Group{{Name: "a", Slot: 1, Ingress: Share{Max: tc.Mbit}, Ports: []uint16{1}}}}
	f := newFake()
	plan := func(w Wanted) []Step {
		steps, err := Plan(w, f.look())
		if err == nil {
			err = f.run(steps)
		}
		if err != nil {
			t.Fatal(err)
		}
		return steps
	}
	plan(w)
	other := tc.Record{Kind: "matchall", Handle: 1, Parent: tc.IngressHandle | 0xfff2,
		Info: tc.FilterInfo(1, tc.ProtoAll)}
	f.state.Device.Filters = append(f.state.Device.Filters, other)
	if steps := plan(w); len(steps) > 0 {
		t.Errorf("nothing else has changed, and it does %v", steps)
	}
	w.Groups[0].Ingress.Max, w.Groups[0].Egress.Max = 2*tc.Mbit, tc.Mbit
	if len(plan(w)) == 0 {
		t.Error("other limits change nothing")
	}
	plan(Wanted{Device: "eth0"})
	d := f.look().Device
	if f.look().NIC != nil || len(d.Filters) != 1 || d.Filters[0].Kind != other.Kind ||
		!slices.ContainsFunc(d.Qdiscs, tc.Record.AtIngress) {
		t.Errorf("left are %v and %v", d.Qdiscs, d.Filters)
	}
	f.state.Device.Filters = nil
	f.state.Device.Qdiscs = nil
	plan(w)
	f.state.Device.Filters = slices.DeleteFunc(f.state.Device.Filters, func(r tc.Record) bool { return r.OnIngress() })
	f.state.Device.Filters = append(f.state.Device.Filters, other)
	if s := f.look(); s.ingress().ours {
		t.Error("a hook with filters of others alone is ours")
	}
}

// What could not be put back is not taken away, whatever the policy allows.
func TestForeignThatCannotComeBack(t *testing.T) {
	f := newFake(tc.Record{Kind: "clsact", Handle: tc.IngressHandle, Parent: tc.AtIngress})
	f.state.Device.Filters = []tc.Record{{Kind: "bpf", Handle: 1, Parent: tc.IngressHandle | 0xfff2,
		Info: tc.FilterInfo(1, tc.ProtoAll)}}
	s := f.look()
	_, err := s.Foreign(Wanted{Replace: true, Groups: []Group{{Ingress: Share{Max: 1}}}})
	if err == nil || !strings.Contains(err.Error(), "filter bpf 1 on eth0 at ffff:fff2 could not be put back") {
		t.Error(err)
	}
}
