package switches

import (
	"time"

	"bulkhead/internal/linux/ctxswitch"
)

// Use is what one of several did meanwhile.
type Use struct {
	Name  string          `json:"name"`
	PID   int             `json:"pid,omitempty"` // of a process, and of the main one of an instance
	Count ctxswitch.Count `json:"switches"`
	Rate  float64         `json:"per_second"`

	Group    string `json:"group,omitempty"`    // of a process: its directory of the CPU controller
	Instance string `json:"instance,omitempty"` // of a process
}

// Queries is what an instance did meanwhile by its own count.
type Queries struct {
	Instance string  `json:"instance"`
	Counter  string  `json:"counter"` // "Questions", "transactions"
	Done     int64   `json:"done"`
	PerQuery float64 `json:"switches_per_query"` // 0 when there was none
	Trouble  string  `json:"trouble,omitempty"`  // why it is not known
}

// CPU is one CPU.
type CPU struct {
	ID   int     `json:"cpu"`
	Rate float64 `json:"per_second"`
}

// Report is a measurement.
type Report struct {
	Span   time.Duration `json:"span_ns"`
	Total  uint64        `json:"switches"` // of the machine, its idle threads included
	PerCPU float64       `json:"per_second_and_cpu"`
	CPUs   []CPU         `json:"cpus,omitempty"` // none where the kernel does not tell
	// ThreadSpan is the time between two looks at all threads, which is that of all below.
	ThreadSpan time.Duration `json:"threads_span_ns"`
	Seen       uint64        `json:"of_threads"` // without the machine's idle threads
	Groups     []Use         `json:"groups"`
	Servers    []Use         `json:"instances"`
	Procs      []Use         `json:"processes"` // those that ended, and were not seen before, count for one without PID
	Queries    []Queries     `json:"queries"`
	// Notes say what is not counted.
	Notes []string `json:"notes"`
}

// rate is of threads.
func (r *Report) rate(n uint64) float64 { return float64(n) / r.ThreadSpan.Seconds() }
