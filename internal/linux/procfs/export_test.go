package procfs

// SetClock replaces the clock that tells young processes from settled ones.
func (s *Scanner) SetClock(ticks func() uint64) { s.clock = ticks }

// Names for the tests in package host_test.
const SettleTicks, WholeEvery = settleTicks, wholeEvery
