package netshape

import (
	"errors"
	"fmt"
	"testing"

	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape/bpf"

	"pgregory.net/rapid"
)

func TestNumbers(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Slot(1).Class().String(), "7fff:20"},
		{Slot(1).inner().String(), "7fff:30"},
		{Slot(1).leaf().String(), "7001:"},
		{bpf.SorterName(Slot(1).Class()), "bh_7fff_0020"},
		{Slot(maxSlot).Class().String(), "7fff:ffe0"},
		{Slot(maxSlot).inner().String(), "7fff:fff0"},
		{Slot(maxSlot).leaf().String(), "77ff:"},
		{nicName(2147483647), "bhifb2147483647"},
		{tc.AtRoot.String(), "root"},
		{tc.AtIngress.String(), "ingress"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
	if len(nicName(2147483647)) > 15 || len(bpf.SorterName(Slot(maxSlot).Class())) > 15 {
		t.Error("a name is longer than the kernel takes")
	}
	for h, want := range map[tc.Handle]bool{0x7fff0000: true, 0x70000000: true, 0x77ff0000: true, 0x78000000: false,
		0x80010000: false, 0x10000: false, tc.IngressHandle: false, tc.AtRoot: false} {
		if ours(h) != want {
			t.Errorf("%s ours: %v", h, ours(h))
		}
	}
	for s := Slot(1); s <= maxSlot; s++ {
		if s.Class()&15 != 0 {
			t.Fatalf("class %s has priority bits that other qdiscs act on", s.Class())
		}
		if class, ok := bpf.SorterClass(bpf.SorterName(s.Class())); !ok || class != s.Class() {
			t.Fatalf("the program of slot %d sorts into %s", s, class)
		}
	}
	if name := bpf.PolicerName(Slot(maxSlot).Class(), 2147483647); name != "bpffe0_7fffffff" || len(name) > 15 {
		t.Errorf("policer %s", name)
	}
	if index, ok := bpf.PolicerIndex(bpf.PolicerName(Slot(7).Class(), 12)); !ok || index != 12 {
		t.Errorf("the policer of interface 12 is for %d", index)
	}
	for _, name := range []string{"", "bp", "bp_0020_00000002", "bpf_prog", "bp0020_000000021"} {
		if _, ok := bpf.PolicerIndex(name); ok {
			t.Errorf("%q is no policer of ours", name)
		}
	}
	for _, name := range []string{"", "sd_fw_egress", "bh_7fff_", "bh_7fff_00200", "bh_7fff_zzzz"} {
		if _, ok := bpf.SorterClass(name); ok {
			t.Errorf("%q is no program of ours", name)
		}
	}
}

func TestSlots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.StringMatching(`[a-f]`)
		had := rapid.MapOf(name, rapid.Custom(func(t *rapid.T) Slot {
			return Slot(rapid.IntRange(0, maxSlot+2).Draw(t,
				"slot"))
		})).Draw(t, "had")
		groups := rapid.SliceOfDistinct(name, func(s string) string { return s }).Draw(t, "groups")
		now, err := Slots(had, groups)
		if err != nil {
			t.Fatal(err)
		}
		used := make(map[Slot]bool)
		for _, g := range groups {
			s, ok := now[g]
			if !ok || s < 1 || s > maxSlot || used[s] {
				t.Fatalf("%s has %d in %v", g, s, now)
			}
			used[s] = true
		}
		again, err := Slots(now, groups)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(now) {
			t.Fatalf("a second time: %v, was %v", again, now)
		}
		if len(now) != len(groups) {
			t.Fatalf("%v for %v", now, groups)
		}
	})
}

func TestSlotsRunOut(t *testing.T) {
	var groups []string
	for i := range maxSlot + 1 {
		groups = append(groups, fmt.Sprintf("g%d", i))
	}
	if _, err := Slots(nil, groups); !errors.Is(err, ErrFull) {
		t.Errorf("got %v", err)
	}
	if _, err := Slots(nil, groups[1:]); err != nil {
		t.Errorf("as many as there are numbers: %v", err)
	}
}
