package netshape

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/linux/nlattr"
	"bulkhead/internal/linux/tc"

	"github.com/vishvananda/netlink/nl"
	"pgregory.net/rapid"
)

// drawWanted gives something that can be asked for.
func drawWanted(t *rapid.T, label string) Wanted {
	w := Wanted{Device: "eth0", LinkRate: 10 * tc.Gbit,
		Leaf: rapid.SampledFrom([]string{"", "fq_codel", "fq"}).Draw(t, label+" leaf")}
	names := []string{"a", "a/b", "a/c", "d", "d/e"}
	for i, name := range names {
		parent := name[:max(strings.LastIndexByte(name, '/'), 0)]
		if rapid.Bool().Draw(t, label+" has "+name) {
			continue
		}
		g := Group{Name: name, Parent: parent, Slot: Slot(i + 1)}
		if !slices.ContainsFunc(w.Groups, func(p Group) bool { return p.Name == parent }) {
			g.Parent = ""
		}
		share := func(d string) Share {
			s := Share{Max: tc.Rate(rapid.IntRange(0, 3).Draw(t, label+d+name)) * 500 * tc.Mbit}
			if rapid.Bool().Draw(t, label+d+"min "+name) {
				s.Min = 10 * tc.Mbit
			}
			return s
		}
		g.Egress, g.Ingress = share(" egress "), share(" ingress ")
		g.Ports = []uint16{uint16(3306 + i), uint16(13306 + i)}
		switch rapid.IntRange(0, 2).Draw(t, label+" sorting "+name) {
		case 0:
			g.Cgroup = "/c/" + name
			if g.Ingress.Max != 0 && rapid.Bool().Draw(t, label+" policed "+name) {
				g.Ports, g.Ingress.Min = nil, 0
			}
		case 1:
			g.NetCls = true
		}
		w.Groups = append(w.Groups, g)
	}
	return w
}

// From any wanted state, stopped after any step on the way to any other, the way on and the way down end where they
// should, and at no point leads anything to what is not there: the fake refuses that.
func TestPlanFromAnywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFake()
		for _, label := range []string{"first", "second", "third"} {
			w := drawWanted(t, label)
			steps, err := Plan(w, f.look())
			if err != nil {
				t.Fatal(err)
			}
			n := rapid.IntRange(0, len(steps)).Draw(t, "stopped after")
			if err := f.run(steps[:n]); err != nil {
				t.Fatal(err)
			}
			if rapid.Bool().Draw(t, "stay there") {
				continue
			}
			if steps, err = Plan(w, f.look()); err != nil {
				t.Fatal(err)
			}
			if err := f.run(steps); err != nil {
				t.Fatal(err)
			}
			if steps, err = Plan(w, f.look()); err != nil || len(steps) > 0 {
				t.Fatalf("still to do: %v %v", steps, err)
			}
		}
		steps, err := Plan(Wanted{Device: "eth0"}, f.look())
		if err != nil {
			t.Fatal(err)
		}
		if err := f.run(steps); err != nil {
			t.Fatal(err)
		}
		if left := fmt.Sprintf("%+v", f.look()); left != fmt.Sprintf("%+v", newFake().look()) {
			t.Fatalf("left behind: %s", left)
		}
	})
}

// summary is what a state holds, without the kernel's own numbers.
func summary(s State) string {
	var all []string
	devices := []tc.Device{s.Device}
	if s.NIC != nil {
		devices = append(devices, *s.NIC)
	}
	for _, d := range devices {
		for _, r := range slices.Concat(d.Qdiscs, d.Classes) {
			all = append(all, fmt.Sprintf("%s %s %s %x", d.Name, r, r.ParentHandle(), r.Options))
		}
		for _, r := range d.Filters {
			if f, _ := tc.ParseFilter(r, s.nic); r.Real() {
				all = append(all, fmt.Sprintf("%s %s %s %d", d.Name, f, r.Parent, r.Pref()))
			}
		}
	}
	for _, p := range slices.Concat(s.Programs, s.Policers) {
		all = append(all, fmt.Sprint(p.Cgroup, " ", p.Name, " ", p.Rate))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}

// The undo of any number of steps, last first, gives back what was there, and so does the undo of all steps of which
// only some were made, however often it begins anew: who undoes does not know how far things came.
func TestUndo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := newFake()
		steps, err := Plan(drawWanted(t, "first"), f.look())
		if err == nil {
			err = f.run(steps)
		}
		if err != nil {
			t.Fatal(err)
		}
		before := summary(f.look())
		steps, err = Plan(drawWanted(t, "second"), f.look())
		if err != nil {
			t.Fatal(err)
		}
		n := rapid.IntRange(0, len(steps)).Draw(t, "stopped after")
		if err := f.run(steps[:n]); err != nil {
			t.Fatal(err)
		}
		back, stops := steps[:n], []int{0} // who has made the steps undoes them in one go
		if rapid.Bool().Draw(t, "by the journal") {
			back, stops = steps, append(rapid.SliceOfN(rapid.IntRange(0, len(steps)), 0, 2).Draw(t, "stops"), 0)
		}
		for _, stop := range stops {
			for _, s := range slices.Backward(back[stop:]) {
				if _, err := takeBack(f, s.Do, s.Undo); err != nil {
					t.Fatalf("undo of %q: %v", s.Do, err)
				}
			}
		}
		if after := summary(f.look()); after != before {
			t.Fatalf("before\n%s\nafter\n%s", before, after)
		}
	})
}

// What fq_codel takes only when it is made is not written back when a change of it is undone.
func TestUndoOfAChangedQueue(t *testing.T) {
	f := newFake()
	w := Wanted{Device: "eth0", Leaf: "fq_codel",
		Groups: []Group{{Name: "a", Slot: 1, Egress: Share{Max: 5 * tc.Mbit}, Ports: []uint16{1}}}}
	up, err := Plan(w, f.look())
	if err == nil {
		err = f.run(up)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, q := range f.state.Device.Qdiscs {
		if q.Kind == "fq_codel" {
			shown := nl.NewRtAttr(nl.TCA_FQ_CODEL_FLOWS, nl.Uint32Attr(1024)).Serialize()
			f.state.Device.Qdiscs[i].Options = append(shown, q.Options...)
		}
	}
	w.Groups[0].Egress.Max = 4 * tc.Mbit
	steps, err := Plan(w, f.look())
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, s := range steps {
		if s.Do.What != Qdisc || s.Do.Verb != tc.Alter {
			continue
		}
		found = true
		if _, has := nlattr.Find(s.Undo[0].Record.Options, nl.TCA_FQ_CODEL_FLOWS); has {
			t.Error("its undo sets the number of flows")
		}
		if target, ok := nlattr.Uint32(s.Undo[0].Record.Options, nl.TCA_FQ_CODEL_TARGET); !ok || target != 5120 {
			t.Errorf("its undo sets a target of %d", target)
		}
	}
	if !found {
		t.Errorf("the queue is not changed: %v", steps)
	}
}

func TestPlanOrder(t *testing.T) {
	f := newFake()
	w := Wanted{Device: "eth0", Groups: []Group{
		{Name: "a", Slot: 1, Egress: Share{Max: 100 * tc.Mbit}, Ingress: Share{Max: 50 * tc.Mbit}, Cgroup: "/c/a",
			Ports: []uint16{3306}},
	}}
	up, err := Plan(w, f.look())
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"add virtual NIC bhifb2",
		"replace qdisc htb 7fff: on eth0 at root",
		"replace qdisc htb 7fff: on bhifb2 at root",
		"add class 7fff:20 on eth0 below 7fff:",
		"add class 7fff:20 on bhifb2 below 7fff:",
		"replace qdisc bfifo 7001: on eth0 at 7fff:20",
		"replace qdisc bfifo 7001: on bhifb2 at 7fff:20",
		"add filter 28672 on bhifb2 at 7fff:: IPv4 TCP to port 3306 → 7fff:20",
		"add filter 28673 on bhifb2 at 7fff:: IPv6 TCP to port 3306 → 7fff:20",
		`add program that sorts "/c/a" into class 7fff:20`,
		"add qdisc ingress ffff: on eth0 at ingress",
		"add filter 28672 on eth0 at ffff:: IPv4 TCP to port 3306 → bhifb2",
		"add filter 28673 on eth0 at ffff:: IPv6 TCP to port 3306 → bhifb2",
	}
	equal(t, up, want)
	if err := f.run(up); err != nil {
		t.Fatal(err)
	}
	down, err := Plan(Wanted{Device: "eth0"}, f.look())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, down, []string{
		"delete filter 28672 on eth0 at ffff:: IPv4 TCP to port 3306 → bhifb2",
		"delete filter 28673 on eth0 at ffff:: IPv6 TCP to port 3306 → bhifb2",
		"delete filter 28672 on bhifb2 at 7fff:: IPv4 TCP to port 3306 → 7fff:20",
		"delete filter 28673 on bhifb2 at 7fff:: IPv6 TCP to port 3306 → 7fff:20",
		`delete program that sorts "/c/a" into class 7fff:20`,
		"delete class 7fff:20 on eth0 below 7fff:",
		"delete class 7fff:20 on bhifb2 below 7fff:",
		"delete qdisc htb 7fff: on eth0 at root",
		"delete qdisc htb 7fff: on bhifb2 at root",
		"delete qdisc ingress ffff: on eth0 at ingress",
		"delete virtual NIC bhifb2",
	})
	keep, err := Plan(Wanted{Device: "eth0", Keep: true}, f.look())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range keep {
		if s.Do.Regrafts() || s.Do.What == NIC {
			t.Errorf("a step that drops packets: %s", s.Do)
		}
	}
	if err := f.run(keep); err != nil {
		t.Fatal(err)
	}
	again, err := Plan(w, f.look())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range again {
		if s.Do.Regrafts() {
			t.Errorf("a step that drops packets: %s", s.Do)
		}
	}
}

func equal(t *testing.T, steps []Step, want []string) {
	t.Helper()
	var got []string
	for _, s := range steps {
		got = append(got, s.Do.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A change of a rate changes the class where it is, and nothing else.
func TestPlanChangesInPlace(t *testing.T) {
	f := newFake()
	w := Wanted{Device: "eth0", Leaf: "fq",
		Groups: []Group{{Name: "a", Slot: 1, Egress: Share{Max: 100 * tc.Mbit}, Cgroup: "/c/a"}}}
	steps, _ := Plan(w, f.look())
	if err := f.run(steps); err != nil {
		t.Fatal(err)
	}
	w.Groups[0].Egress.Max = 200 * tc.Mbit
	steps, err := Plan(w, f.look())
	if err != nil || len(steps) != 1 || steps[0].Do.Verb != tc.Alter || steps[0].Do.What != ClassOf {
		t.Errorf("%v %v", steps, err)
	}
}

// A filter that a run left behind twice goes, and one that leads nowhere known.
func TestPlanTidiesFilters(t *testing.T) {
	f := newFake()
	w := Wanted{Device: "eth0", Groups: []Group{{Name: "a", Slot: 1, Egress: Share{Max: 100 * tc.Mbit},
		Ports: []uint16{3306}}}}
	steps, _ := Plan(w, f.look())
	if err := f.run(steps); err != nil {
		t.Fatal(err)
	}
	root := tc.MakeHandle(rootMajor, 0)
	for i, extra := range []tc.Filter{
		{Protocol: tc.ProtoIPv4, Port: 3306, Source: true, Class: Slot(1).Class()},
		{Protocol: tc.ProtoIPv4, Port: 99, Source: true, Class: Slot(1).Class()},
	} {
		err := f.Do(Change{Verb: tc.Add, What: FilterOf, Device: "eth0", Filter: &extra,
			Record: tc.Record{Kind: "u32", Parent: root, Info: tc.FilterInfo(prefBase+10+uint16(i), extra.Protocol)}})
		if err != nil {
			t.Fatal(err)
		}
	}
	steps, err := Plan(w, f.look())
	if err != nil {
		t.Fatal(err)
	}
	equal(t, steps, []string{
		"delete filter 28682 on eth0 at 7fff:: IPv4 TCP from port 3306 → 7fff:20",
		"delete filter 28683 on eth0 at 7fff:: IPv4 TCP from port 99 → 7fff:20",
	})
}

func TestPlanRefusesOnePortOfTwo(t *testing.T) {
	w := Wanted{Device: "eth0", Groups: []Group{
		{Name: "a", Slot: 1, Ingress: Share{Max: tc.Mbit}, Ports: []uint16{3306}},
		{Name: "b", Slot: 2, Egress: Share{Max: tc.Mbit}, Ports: []uint16{3306}},
	}}
	if _, err := Plan(w, newFake().look()); err == nil ||
		!strings.Contains(err.Error(), `port 3306 is also that of group "a"`) {
		t.Error(err)
	}
}

// A policed group needs neither a class nor the virtual NIC; its rate changes where it is.
func TestPlanPolices(t *testing.T) {
	f := newFake()
	w := Wanted{Device: "eth0", Groups: []Group{
		{Name: "a", Slot: 1, Ingress: Share{Max: 50 * tc.Mbit}, Cgroup: "/c/a"},
		{Name: "a/b", Parent: "a", Slot: 2, Ingress: Share{Max: 20 * tc.Mbit}, Cgroup: "/c/a/b"},
	}}
	for _, want := range [][]string{
		{
			`add program that polices what arrives at eth0 for "/c/a" to 50Mbit/s`,
			`add program that polices what arrives at eth0 for "/c/a/b" to 20Mbit/s`,
		},
		{`change program that polices what arrives at eth0 for "/c/a" to 40Mbit/s`},
		{`delete program that polices what arrives at eth0 for "/c/a/b" to 20Mbit/s`},
		{`delete program that polices what arrives at eth0 for "/c/a" to 40Mbit/s`},
	} {
		steps, err := Plan(w, f.look())
		if err == nil {
			err = f.run(steps)
		}
		if err != nil {
			t.Fatal(err)
		}
		equal(t, steps, want)
		switch n := len(w.Groups); {
		case n > 0 && w.Groups[0].Ingress.Max == 40*tc.Mbit:
			w.Groups = w.Groups[:n-1]
		case n > 0:
			w.Groups[0].Ingress.Max = 40 * tc.Mbit
		}
	}
}

// Somebody took the virtual NIC away: what was led there is dropped, so those filters go first, and then all is made
// anew.
func TestPlanHealsALostNIC(t *testing.T) {
	f := newFake()
	w := Wanted{Device: "eth0", Groups: []Group{{Name: "a", Slot: 1, Ingress: Share{Max: tc.Mbit},
		Ports: []uint16{3306}}}}
	steps, err := Plan(w, f.look())
	if err == nil {
		err = f.run(steps)
	}
	if err != nil {
		t.Fatal(err)
	}
	lose := func() {
		f.state.NIC = nil
		for i, r := range f.state.Device.Filters {
			if r.Real() { // the kernel then shows no interface
				f.state.Device.Filters[i].Options = tc.Filter{Protocol: r.Protocol(), Port: 3306,
					Redirect: "gone"}.Options(0)
			}
		}
	}
	for _, want := range []Wanted{w, {Device: "eth0"}} {
		lose()
		steps, err := Plan(want, f.look())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 2 {
			if do := steps[i].Do; do.Verb != tc.Delete || do.What != FilterOf {
				t.Errorf("step %d is %s", i+1, do)
			}
		}
		if err := f.run(steps); err != nil {
			t.Fatal(err)
		}
		if again, err := Plan(want, f.look()); err != nil || len(again) > 0 {
			t.Errorf("a second time: %v %v", again, err)
		}
	}
	if left := fmt.Sprintf("%+v", f.look()); left != fmt.Sprintf("%+v", newFake().look()) {
		t.Errorf("left behind: %s", left)
	}
}
