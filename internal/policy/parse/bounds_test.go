package parse

import (
	"testing"

	"bulkhead/internal/policy"
)

func TestBound(t *testing.T) {
	parse := func(key policy.Key, text string) policy.Bound {
		t.Helper()
		p, err := Policy([]policy.Source{{Path: "p",
			Text: "version: 1\ngroups:\n  g: {owner: {user: '7', may: [set], bounds: {" + string(key) + ": '" + text +
				"'}}}\n"}})
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
		key         policy.Key
		bound, text string
		within      bool
	}{
		{policy.KeyCPULimit, "1..8", "1", true}, {policy.KeyCPULimit, "1..8", "8", true},
		{policy.KeyCPULimit, "1..8", "8.000001", false}, {policy.KeyCPULimit, "1..8", "0.999999", false},
		{policy.KeyCPULimit, "1..8", "150%", true}, {policy.KeyCPULimit, "1..8", "max", false},
		{policy.KeyCPULimit, "1..max", "max", true}, {policy.KeyCPULimit, "1..max", "0.5", false},
		{policy.KeyCPULimit, "1..max", "64", true}, {policy.KeyCPULimit, "..8", "0.01", true},
		{policy.KeyCPULimit, "2..", "2000", true}, {policy.KeyCPULimit, "2..", "max", false},
		{policy.KeyMemoryMax, "1GiB..4GiB", "4GiB", true}, {policy.KeyMemoryMax, "1GiB..4GiB", "4096MiB", true},
		{policy.KeyMemoryMax, "1GiB..4GiB", "4097MiB", false},
		{policy.KeyMemoryMax, "1GiB..4GiB", "1%", false}, // bytes of it are compared, not the percentage
		{policy.KeyIOWriteBandwidth, "..50MB/s", "50MB/s", true},
		{policy.KeyIOWriteBandwidth, "..50MB/s", "51MB/s", false},
		{policy.KeyCPUCPUs, "0-3,8", "1-2,8", true}, {policy.KeyCPUCPUs, "0-3,8", "3-4", false},
		{policy.KeyCPUCPUs, "0-3,8", "max", false},
		{policy.KeyNetworkEgressMax, "..100Mbit/s", "100Mbit/s", true},
		{policy.KeyNetworkEgressMax, "..100Mbit/s", "1Gbit/s", false},
	} {
		v, wrong := policy.LimitOf(c.key).Parse(c.text)
		if wrong != nil {
			t.Fatalf("%s: %v", c.text, wrong)
		}
		if got := parse(c.key, c.bound).Allows(v); got != c.within {
			t.Errorf("%s: %s within %s: %v", c.key, c.text, c.bound, got)
		}
	}
}
