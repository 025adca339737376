package netshape

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/linux/tc"
)

// show gives a class in a line.
func show(c Class) string {
	return fmt.Sprintf("%s < %s %s %s..%s", c.ID, c.Parent, c.Group, c.Rate, c.Ceil)
}

func TestClasses(t *testing.T) {
	egress := func(name, parent string, slot Slot, min, max tc.Rate) Group {
		return Group{Name: name, Parent: parent, Slot: slot, Egress: Share{min, max}, Cgroup: "/c/" + name}
	}
	for _, c := range []struct {
		name string
		w    Wanted
		want []string
	}{
		{"nothing", Wanted{}, nil},
		{"a ceiling alone leaves the rest of the traffic without a class",
			Wanted{Groups: []Group{egress("a", "", 1, 0, 100*tc.Mbit)}},
			[]string{"7fff:20 < 7fff: a 100Mbit/s..100Mbit/s"}},
		{"guarantees", Wanted{LinkRate: 100 * tc.Mbit,
			Groups: []Group{egress("a", "", 1, 70*tc.Mbit, 0), egress("b", "", 2, 20*tc.Mbit, 50*tc.Mbit)}},
			[]string{
				"7fff:1 < 7fff:  100Mbit/s..100Mbit/s",
				"7fff:2 < 7fff:1  10Mbit/s..100Mbit/s",
				"7fff:20 < 7fff:1 a 70Mbit/s..100Mbit/s",
				"7fff:40 < 7fff:1 b 20Mbit/s..50Mbit/s",
			}},
		{"all of the link given away leaves the rest a hundredth",
			Wanted{LinkRate: tc.Gbit, Groups: []Group{egress("a", "", 1, tc.Gbit, 0)}},
			[]string{"7fff:1 < 7fff:  1Gbit/s..1Gbit/s", "7fff:2 < 7fff:1  10Mbit/s..1Gbit/s",
				"7fff:20 < 7fff:1 a 1Gbit/s..1Gbit/s"}},
		{"nested", Wanted{Groups: []Group{egress("a", "", 1, 0, 100*tc.Mbit),
			egress("a/b", "a", 2, 10*tc.Mbit, 30*tc.Mbit), egress("a/c", "a", 3, 20*tc.Mbit, 0)}},
			[]string{
				"7fff:30 < 7fff: a 100Mbit/s..100Mbit/s",
				"7fff:20 < 7fff:30 a 70Mbit/s..100Mbit/s",
				"7fff:40 < 7fff:30 a/b 10Mbit/s..30Mbit/s",
				"7fff:60 < 7fff:30 a/c 20Mbit/s..100Mbit/s",
			}},
		{"one without a share between two", Wanted{Groups: []Group{egress("a", "", 1, 0, 100*tc.Mbit),
			egress("a/b", "a", 2, 0, 0), egress("a/b/c", "a/b", 3, 0, 10*tc.Mbit)}},
			[]string{
				"7fff:30 < 7fff: a 100Mbit/s..100Mbit/s",
				"7fff:20 < 7fff:30 a 100Mbit/s..100Mbit/s",
				"7fff:60 < 7fff:30 a/b/c 64kbit/s..10Mbit/s",
			}},
		{"a parent guarantees what its children need",
			Wanted{LinkRate: 100 * tc.Mbit, Groups: []Group{egress("a", "", 1, 0, 50*tc.Mbit),
				egress("a/b", "a", 2, 40*tc.Mbit, 0), egress("z", "", 3, 10*tc.Mbit, 0)}},
			[]string{
				"7fff:1 < 7fff:  100Mbit/s..100Mbit/s",
				"7fff:2 < 7fff:1  50Mbit/s..100Mbit/s",
				"7fff:30 < 7fff:1 a 40Mbit/s..50Mbit/s",
				"7fff:20 < 7fff:30 a 64kbit/s..50Mbit/s",
				"7fff:40 < 7fff:30 a/b 40Mbit/s..50Mbit/s",
				"7fff:60 < 7fff:1 z 10Mbit/s..100Mbit/s",
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.w.Device = "eth0"
			got, err := Classes(c.w, Egress)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, g := range got {
				lines = append(lines, show(g))
			}
			if !slices.Equal(lines, c.want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(c.want, "\n"))
			}
		})
	}
}

func TestClassesRefuse(t *testing.T) {
	group := func(min, max tc.Rate) Group {
		return Group{Name: "a", Slot: 1, Egress: Share{min, max}, Cgroup: "/c/a"}
	}
	for _, c := range []struct {
		name string
		w    Wanted
		want string
	}{
		{"too little", Wanted{Groups: []Group{group(0, 8*tc.Kbit)}},
			`shape eth0 for group "a": egress max 8kbit/s is too little to answer a connection; ` +
				`hint: 64kbit/s is the least`},
		{"min above max", Wanted{LinkRate: tc.Gbit, Groups: []Group{group(3*tc.Mbit, 2*tc.Mbit)}},
			`egress min 3Mbit/s is above its max 2Mbit/s`},
		{"above the link", Wanted{LinkRate: tc.Gbit, Groups: []Group{group(0, 10*tc.Gbit)}},
			`egress max 10Gbit/s is above the link's 1Gbit/s`},
		{"min above the link", Wanted{LinkRate: tc.Gbit, Groups: []Group{group(2*tc.Gbit, 0)}},
			`egress min 2Gbit/s is above the link's 1Gbit/s`},
		{"a guarantee of what", Wanted{Groups: []Group{group(tc.Mbit, 0)}},
			`has a guarantee, and nobody knows what the link carries`},
		{"too many guarantees", Wanted{LinkRate: tc.Gbit,
			Groups: []Group{group(600*tc.Mbit, 0),
				{Name: "b", Slot: 2, Egress: Share{Min: 600 * tc.Mbit}, Cgroup: "/c/b"}}},
			`shape eth0: egress guarantees add up to 1.2Gbit/s, the link carries 1Gbit/s`},
		{"too many for the parent", Wanted{Groups: []Group{group(0, 10*tc.Mbit),
			{Name: "b", Parent: "a", Slot: 2, Egress: Share{Min: 11 * tc.Mbit}, Cgroup: "/c/b"}}},
			`egress has 10Mbit/s, its children's guarantees add up to 11Mbit/s`},
		{"one slot", Wanted{Groups: []Group{group(0, tc.Mbit),
			{Name: "b", Slot: 1, Egress: Share{Max: tc.Mbit}, Cgroup: "/c/b"}}},
			`has no number of its own (1, other group: "a")`},
		{"no slot", Wanted{Groups: []Group{{Name: "a", Egress: Share{Max: tc.Mbit}, Cgroup: "/c"}}},
			`has no number of its own`},
		{"twice", Wanted{Groups: []Group{group(0, tc.Mbit), group(0, tc.Mbit)}}, `is there twice`},
		{"a circle", Wanted{Groups: []Group{{Name: "a", Parent: "b", Slot: 1, Egress: Share{Max: tc.Mbit},
			Cgroup: "/c"}, {Name: "b", Parent: "c"}, {Name: "c", Parent: "b"}}}, `has itself above it`},
		{"nothing to tell it by", Wanted{Groups: []Group{{Name: "a", Slot: 1, Egress: Share{Max: tc.Mbit}}}},
			`can be sorted neither by a cgroup2 directory nor by net_cls nor by ports`},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.w.Device = "eth0"
			_, err := Classes(c.w, Egress)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
	for want, g := range map[string]Group{
		"ingress is sorted by the ports that the group listens on or by its cgroup2 directory, and neither is " +
			"known": {Name: "a", Slot: 1, Ingress: Share{Max: tc.Mbit}},
		"ingress min needs a class": {Name: "a", Slot: 1, Ingress: Share{Min: tc.Mbit, Max: tc.Mbit},
			Cgroup: "/c"},
		"ingress max 1kbit/s is too little": {Name: "a", Slot: 1, Ingress: Share{Max: tc.Kbit}, Cgroup: "/c"},
	} {
		if _, err := Classes(Wanted{Device: "eth0", Groups: []Group{g}}, Ingress); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestClassesNestAsDeepAsTheKernel(t *testing.T) {
	w := Wanted{Device: "eth0"}
	parent := ""
	for i := range 10 {
		name := fmt.Sprintf("g%d", i)
		w.Groups = append(w.Groups, Group{Name: name, Parent: parent, Slot: Slot(i + 1), Egress: Share{Max: tc.Gbit},
			Cgroup: "/c/" + name})
		parent = name
	}
	if _, err := Classes(w, Egress); err == nil || !strings.Contains(err.Error(), "nested deeper") {
		t.Errorf("ten levels: %v", err)
	}
	w.Groups = w.Groups[:8]
	if got, err := Classes(w, Egress); err != nil || len(got) != 15 {
		t.Errorf("eight levels: %d classes, %v", len(got), err)
	}
}

func TestBurstsAndQuanta(t *testing.T) {
	for _, c := range []struct {
		rate           tc.Rate
		burst, quantum uint32
	}{
		{64 * tc.Kbit, 80 + 1600, 1600},                   // 210 ms
		{tc.Mbit, 1250 + 1600, 1600},                      // 22.8 ms
		{100 * tc.Mbit, 125_000 + 1600, 62_500},           // 10.128 ms
		{tc.Gbit, 1_250_000 + 1600, 625_000},              // 10.0128 ms
		{10 * tc.Gbit, 12_500_000 + 1600, 6_250_000},      //
		{40 * tc.Gbit, 50_000_000 + 1600, 16_777_216},     // the library's default is 0 from 13 Gbit/s on
		{100 * tc.Gbit, 125_000_000 + 1600, 16_777_216},   // 10.000128 ms
		{1000 * tc.Gbit, 1250_000_000 + 1600, 16_777_216}, //
	} {
		if got := burst(c.rate); got != c.burst {
			t.Errorf("burst at %s: %d, want %d", c.rate, got, c.burst)
		}
		if got := quantum(c.rate); got != c.quantum {
			t.Errorf("quantum at %s: %d, want %d", c.rate, got, c.quantum)
		}
	}
}
