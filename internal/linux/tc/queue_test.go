package tc

import (
	"encoding/binary"
	"testing"

	"bulkhead/internal/linux/nlattr"
)

func TestLeafOptions(t *testing.T) {
	for _, c := range []struct {
		kind string
		ceil Rate
		want uint32
	}{
		{ByteQueue, Mbit, 128 << 10},
		{ByteQueue, 100 * Mbit, 2_500_000},
		{ByteQueue, 100 * Gbit, 64 << 20},
	} {
		r := Record{Kind: c.kind, Options: LeafOptions(c.kind, c.ceil)}
		if got := binary.NativeEndian.Uint32(r.Options); got != c.want {
			t.Errorf("%s at %s: %d, want %d", c.kind, c.ceil, got, c.want)
		}
		if !LeafSame(c.kind, c.ceil, r) || LeafSame(c.kind, 50*Mbit, r) || LeafSame("fq", c.ceil, r) {
			t.Errorf("%s at %s is not told from others", c.kind, c.ceil)
		}
	}
	r := Record{Kind: "fq_codel", Options: LeafOptions("fq_codel", Mbit)}
	if target, ok := nlattr.Uint32(r.Options, 1); !ok || target != 25600 { // two frames at 1 Mbit/s
		t.Errorf("fq_codel's target: %d", target)
	}
	if !LeafSame("fq_codel", Mbit, r) || LeafSame("fq_codel", Gbit, r) {
		t.Error("fq_codel at 1 Mbit/s is not told from others")
	}
}

// shownOfCoDel gives the microseconds that CoDel shows of a time that was written.
func shownOfCoDel(written uint32) uint32 { return uint32(uint64(written) * 1000 / 1024 * 1024 / 1000) }

// What CoDel shows of a time, written back, is shown the same.
func TestTimesOfCoDel(t *testing.T) {
	for us := range uint32(200_000) {
		if shown := shownOfCoDel(us); shownOfCoDel(roundedUp(shown)) != shown {
			t.Fatalf("%d us is shown as %d, which written as %d is shown as %d",
				us, shown, roundedUp(shown), shownOfCoDel(roundedUp(shown)))
		}
	}
}
