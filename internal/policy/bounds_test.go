package policy

import "testing"

func TestBound(t *testing.T) {
	parse := func(key Key, text string) Bound {
		t.Helper()
		p, err := Parse([]Source{{Path: "p", Text: "version: 1\ngroups:\n  g: {owner: {user: '7', may: [set], bounds: {" + string(key) + ": '" + text + "'}}}\n"}})
		if err != nil {
			t.Fatal(err)
		}
		b := p.Groups[0].Owner[0].Bounds[key]
		if b.String() != text {
			t.Errorf("%s is printed as %s", text, b)
		}
		return b
	}
	for _, c := range []struct {
		key         Key
		bound, text string
		within      bool
	}{
		{KeyCPULimit, "1..8", "1", true}, {KeyCPULimit, "1..8", "8", true}, {KeyCPULimit, "1..8", "8.000001", false}, {KeyCPULimit, "1..8", "0.999999", false},
		{KeyCPULimit, "1..8", "150%", true}, {KeyCPULimit, "1..8", "max", false}, {KeyCPULimit, "1..max", "max", true}, {KeyCPULimit, "1..max", "0.5", false},
		{KeyCPULimit, "1..max", "64", true}, {KeyCPULimit, "..8", "0.01", true}, {KeyCPULimit, "2..", "2000", true}, {KeyCPULimit, "2..", "max", false},
		{KeyMemoryMax, "1GiB..4GiB", "4GiB", true}, {KeyMemoryMax, "1GiB..4GiB", "4096MiB", true}, {KeyMemoryMax, "1GiB..4GiB", "4097MiB", false},
		{KeyMemoryMax, "1GiB..4GiB", "1%", false}, // bytes of it are compared, not the percentage
		{KeyIOWriteBandwidth, "..50MB/s", "50MB/s", true}, {KeyIOWriteBandwidth, "..50MB/s", "51MB/s", false},
		{KeyCPUCPUs, "0-3,8", "1-2,8", true}, {KeyCPUCPUs, "0-3,8", "3-4", false}, {KeyCPUCPUs, "0-3,8", "max", false},
		{KeyNetworkEgressMax, "..100Mbit/s", "100Mbit/s", true}, {KeyNetworkEgressMax, "..100Mbit/s", "1Gbit/s", false},
	} {
		v, wrong := limitOf(c.key).parse(c.text)
		if wrong != nil {
			t.Fatalf("%s: %v", c.text, wrong)
		}
		if got := parse(c.key, c.bound).Allows(v); got != c.within {
			t.Errorf("%s: %s within %s: %v", c.key, c.text, c.bound, got)
		}
	}
}
