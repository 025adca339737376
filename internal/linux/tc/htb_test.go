package tc

import "testing"

func TestHTBClass(t *testing.T) {
	for _, c := range []struct {
		rate           Rate
		burst, quantum uint32
		ticks          uint32
	}{
		{64 * Kbit, 80 + 1600, 1600, 3281250},                  // 210 ms
		{Mbit, 1250 + 1600, 1600, 356250},                      // 22.8 ms
		{100 * Mbit, 125_000 + 1600, 62_500, 158250},           // 10.128 ms
		{Gbit, 1_250_000 + 1600, 625_000, 156450},              // 10.0128 ms
		{10 * Gbit, 12_500_000 + 1600, 6_250_000, 156270},      //
		{40 * Gbit, 50_000_000 + 1600, 16_777_216, 156255},     // the library's default is 0 from 13 Gbit/s on
		{100 * Gbit, 125_000_000 + 1600, 16_777_216, 156252},   // 10.000128 ms
		{1000 * Gbit, 1250_000_000 + 1600, 16_777_216, 156250}, //
	} {
		if got := ticks(c.burst, c.rate); got != c.ticks {
			t.Errorf("ticks at %s: %d, want %d", c.rate, got, c.ticks)
		}
		class := HTBClass{Rate: c.rate, Ceil: c.rate, Burst: c.burst, Cburst: c.burst, Quantum: c.quantum}
		has, ok := parseShownClass(class.Options())
		bytes := c.rate.BytesPerSecond()
		if !ok || has != (shownClass{bytes, bytes, c.ticks, c.ticks, c.quantum}) {
			t.Errorf("%s there and back: %+v", c.rate, has)
		}
		if !class.Same(class.Options(), true) {
			t.Errorf("a class at %s is not the same as itself", c.rate)
		}
		other := class
		other.Ceil += Mbit
		if other.Same(class.Options(), true) {
			t.Errorf("a class at %s is the same as one with another ceiling", c.rate)
		}
	}
}

func TestRateString(t *testing.T) {
	for r, want := range map[Rate]string{
		0: "0bit/s", 999: "999bit/s", 64 * Kbit: "64kbit/s", 1500 * Kbit: "1.5Mbit/s", 100 * Gbit: "100Gbit/s",
	} {
		if got := r.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
