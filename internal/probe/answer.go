package probe

import "time"

// Answer is what came of an order.
type Answer struct {
	Error string        `json:"error,omitempty"`
	Took  time.Duration `json:"took,omitempty"` // of what was measured
	CPU   time.Duration `json:"cpu,omitempty"`  // Spin, Yield: run time of all threads
	Ran   []int         `json:"ran,omitempty"`  // Spin: CPUs on which it ran
	May   []int         `json:"may,omitempty"`  // Spin: CPUs on which it may run
	Bytes int64         `json:"bytes,omitempty"`
	Ops   int64         `json:"ops,omitempty"`   // Fork: processes started; Yield: switches of its threads
	Count int           `json:"count,omitempty"` // Fork: tasks, itself counted
	// Refused says that the kernel refused the next task.
	Refused bool   `json:"refused,omitempty"`
	File    int    `json:"file,omitempty"`  // Dirty: the number of the open file
	Local   string `json:"local,omitempty"` // Traffic: the address of its own
}
