package collect

import (
	"runtime"
	"time"
)

// Meter counts what a reading uses of a CPU, as far as the kernel tells: a part of it in which the reading changed
// threads counts nothing. It is for the goroutine of the reading.
type Meter struct {
	clock  func() (thread int, used time.Duration)
	thread int
	began  time.Duration
	used   time.Duration
	remark string
}

// Remark says what a reading lacks though it does not fail. It is told with the collector until the next reading.
func (m *Meter) Remark(text string) { m.remark = text }

// Remarked is what the reading said.
func (m *Meter) Remarked() string { return m.remark }

// NewMeter makes one with a clock that tells the calling thread and its CPU time.
func NewMeter(clock func() (thread int, used time.Duration)) *Meter { return &Meter{clock: clock} }

// Rest lets other goroutines go first, and what they use does not count. A reading of many groups calls it between two
// of them: a process may have come that waits for its group.
func (m *Meter) Rest() {
	m.stop()
	runtime.Gosched()
	m.start()
}

func (m *Meter) start() { m.thread, m.began = m.clock() }

func (m *Meter) stop() {
	if thread, now := m.clock(); thread == m.thread && now > m.began {
		m.used += now - m.began
	}
}
