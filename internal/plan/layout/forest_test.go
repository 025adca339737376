package layout

import (
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"

	"pgregory.net/rapid"
)

func TestRootSettings(t *testing.T) {
	f := &host.Facts{CPUs: idset.New(0, 1, 2, 3), MemTotal: 16 << 30, PIDMax: 32768, ThreadsMax: 120000}
	for name, test := range map[string]struct {
		host policy.HostPart
		want string
	}{
		"no root": {policy.HostPart{Reserve: policy.Reserve{CPU: policy.One / 2}}, ""},
		"nothing": {policy.HostPart{Root: "ora"}, ""},
		"weight":  {policy.HostPart{Root: "ora", Weight: 300}, "cpu.weight=300"},
		"cpu": {policy.HostPart{Root: "ora", Reserve: policy.Reserve{CPU: policy.One / 2}},
			"cpu.limit=3.5 tasks=29492"},
		"memory": {policy.HostPart{Root: "ora", Reserve: policy.Reserve{Memory: policy.Bytes(1 << 30)}},
			"memory.max=15GiB tasks=29492"},
		"percent": {policy.HostPart{Root: "ora",
			Reserve: policy.Reserve{Memory: policy.MemoryPercent(25 * policy.One)}}, "memory.max=12GiB tasks=29492"},
		"all taken": {policy.HostPart{Root: "ora",
			Reserve: policy.Reserve{CPU: 9 * policy.One, Memory: policy.Bytes(99 << 30)}}, "tasks=29492"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, s := range rootSettings(f, test.host) {
				got = append(got, s.String())
			}
			if text := strings.Join(got, " "); text != test.want {
				t.Errorf("%q, want %q", text, test.want)
			}
		})
	}
	for _, test := range []struct{ pids, threads, want int64 }{
		{32768, 120000, 29492}, {4194304, 5000, 4000}, {1500, 0, 750}, {0, 0, 1},
	} {
		f.PIDMax, f.ThreadsMax = test.pids, test.threads
		if got := tasksCap(f); int64(got) != test.want {
			t.Errorf("of %d pids and %d threads our root group gets %d, want %d", test.pids, test.threads, got,
				test.want)
		}
	}
}

// CompareDirs orders as a comparison of the names between slashes does.
func TestCompareDirs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		paths := rapid.StringOf(rapid.SampledFrom([]rune("/-.0az")))
		a, b := paths.Draw(t, "a"), paths.Draw(t, "b")
		want := slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
		if got := CompareDirs(cgroup.Dir{Path: a}, cgroup.Dir{Path: b}); got != want {
			t.Fatalf("CompareDirs(%q, %q) = %d, want %d", a, b, got, want)
		}
	})
}
