package cgroup

import "testing"

func TestSameOwner(t *testing.T) {
	const listing = "cgroup.procs 0:5 0644, cpu.stat 0:5 0444, cgroup.event_control 0:5 0200"
	for _, c := range []struct {
		want, got string
		same      bool
	}{
		{"0:0 0644", "0:0 0644", true},
		{"0:0 -", "0:0 0600", true},
		{"0:0 0664", "0:0 0644", false},
		{"1:0 0644", "0:0 0644", false},
		{"0:5 -", listing, true},
		// A mode is what each file's owner has at most.
		{"0:5 0644", "cgroup.procs 0:5 0644, cpu.stat 0:5 0444", true},
		{"0:5 0644", listing, true},
		{"0:5 0664", listing, false},
		{"0:6 -", listing, false},
		{"cgroup.procs 0:5 0644, gone 1:1 0600", listing, true},
		{"cgroup.procs 0:0 0644", listing, false},
		{"nonsense", listing, false},
		{"0:5 -", "nonsense", false},
	} {
		if got := SameOwner(c.want, c.got); got != c.same {
			t.Errorf("%q and %q: %v", c.want, c.got, got)
		}
	}
	for _, o := range []Ownership{{UID: 1, GID: 2, Mode: 0o664}, {UID: 0, GID: 0, Mode: Keep}} {
		if back, ok := parseOwnership(o.String()); !ok || back != o {
			t.Errorf("%s read back as %v", o, back)
		}
	}
}
