package snapshot

import (
	"bulkhead/internal/netshape"
	"testing"
	"time"
)

// A piece of the kernel that was missing is looked for again, and one that is there is not.
func TestMissingPiecesAreTriedAgain(t *testing.T) {
	var p pieces
	tried, begin := 0, time.Now()
	at := func(after time.Duration, mirred netshape.Verdict) bool {
		needed := []string{netshape.HasHTB, netshape.HasIFB, netshape.HasMirred, netshape.HasProgram}
		has := p.known(begin.Add(after), needed, func() netshape.Capabilities {
			tried++
			all := netshape.Capabilities{{Name: netshape.HasMirred, Verdict: mirred}}
			for _, name := range []string{netshape.HasHTB, netshape.HasIFB, netshape.HasProgram} {
				all = append(all, netshape.Capability{Name: name, Verdict: netshape.Yes})
			}
			return all
		})
		return has.Has(netshape.HasMirred)
	}
	if at(0, netshape.No) || at(probeEvery-1, netshape.Yes) || tried != 1 {
		t.Errorf("tried %d times at first", tried)
	}
	if !at(probeEvery, netshape.Yes) || !at(time.Hour, netshape.No) || tried != 2 {
		t.Errorf("tried %d times in all", tried)
	}
	// Only what is needed counts as missing.
	probe := func() netshape.Capabilities { tried++; return p.has }
	if p.known(begin.Add(time.Hour), []string{netshape.HasHTB}, probe); tried != 2 {
		t.Error("what is not needed was tried again")
	}
	if p.known(begin.Add(time.Hour), []string{netshape.HasNetCls}, probe); tried != 3 {
		t.Error("what is needed was not tried again")
	}
}
