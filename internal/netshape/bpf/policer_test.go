package bpf

import (
	"testing"

	"bulkhead/internal/linux/tc"
)

func TestBucket(t *testing.T) {
	for _, c := range []struct {
		rate        tc.Rate
		depth, cost uint64
	}{
		{64 * tc.Kbit, 32_768_000_000, 131_072_000_000}, // 256 KiB
		{50 * tc.Mbit, 200_000_000, 167_772_160},        // 160 ns a byte; 1.25 MB
		{tc.Gbit, 200_000_000, 8_388_608},               // 8 ns
		{100 * tc.Gbit, 200_000_000, 83_886},            // 0.08 ns
	} {
		b := bucketFor(c.rate)
		if b.Depth != c.depth || b.Cost != c.cost {
			t.Errorf("%s: depth %d, cost %d; want %d, %d", c.rate, b.Depth, b.Cost, c.depth, c.cost)
		}
		if cost := b.Cost; cost > (1<<63)/(64<<10) {
			t.Errorf("%s: a packet of 64 KiB costs more than a number holds", c.rate)
		}
	}
}
