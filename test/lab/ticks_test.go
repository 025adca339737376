//go:build lab

package lab

import (
	"slices"
	"testing"
)

// The counter of a virtual machine's CPU is told to a guest; of others it is not known.
func TestTicks(t *testing.T) {
	const cpu = "processor\t: 0\ncpu MHz\t\t: 2596.122\nflags\t\t: fpu tsc"
	for text, want := range map[string][]string{
		cpu + " hypervisor\n": {"tsc_early_khz=2596122"}, cpu + "\n": nil, "": nil,
	} {
		if got := ticks(text); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
