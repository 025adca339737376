package switches

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/host"
	"bulkhead/internal/probe"
)

// Machine is what the cost of a switch depends on.
type Machine struct {
	Kernel      string `json:"kernel"`
	CPU         string `json:"cpu"`
	CPUs        int    `json:"cpus"`
	Mitigations string `json:"mitigations"` // what the kernel says of each vulnerability
}

// MachineOf looks at a host.
func MachineOf(h *host.Host, facts *host.Facts) Machine {
	return Machine{Kernel: facts.Kernel.String(), CPU: h.ProcessorName(), CPUs: len(facts.CPUs),
		Mitigations: h.Mitigations()}
}

// Differs says in which of its parts a machine is another one, "" where in none.
func (m Machine) Differs(n Machine) string {
	var parts []string
	for _, p := range []struct {
		name   string
		differ bool
	}{{"kernel", m.Kernel != n.Kernel}, {"CPU", m.CPU != n.CPU}, {"number of CPUs", m.CPUs != n.CPUs},
		{"mitigations", m.Mitigations != n.Mitigations}} {
		if p.differ {
			parts = append(parts, p.name)
		}
	}
	return strings.Join(parts, ", ")
}

// Step is what a number of threads did.
type Step struct {
	Threads int     `json:"threads"`
	Rate    float64 `json:"per_second_and_cpu"` // of the CPU time that they got; 0: too little to tell
	Share   float64 `json:"share"`              // of the CPUs' time that they got
}

// Maximum is the most switches that a CPU of a machine does in a second.
type Maximum struct {
	Rate    float64   `json:"per_second_and_cpu"`
	Threads int       `json:"threads"` // at which it was measured
	Steps   []Step    `json:"steps,omitempty"`
	Machine Machine   `json:"machine"`
	When    time.Time `json:"when"`
	// Stale says what of the machine differs now; "" is nothing.
	Stale string `json:"stale,omitempty"`
}

// perCPU are the numbers of threads for each CPU that a sweep measures.
var perCPU = []int{1, 2, 4, 8, 16, 32, 64}

// SweepStep is how long a sweep measures each number of threads, unless it is said.
const SweepStep = time.Second

// leastShare is how much of the CPUs' time the threads of a step must have had for its rate to count.
const leastShare = 0.02

// Sweep measures the maximum: threads that do nothing but give their CPU to each other, from one to 64 for each CPU.
// They run in a process of their own, bulkhead with args (probe.Start), with the policy SCHED_IDLE. What is measured is
// switches in the CPU time that they got, so other load does not count. A number of threads for which the load does not
// end in time, beside busy processes, is left out.
func Sweep(ctx context.Context, h *host.Host, facts *host.Facts, args []string, step time.Duration) (*Maximum, error) {
	m := &Maximum{Machine: MachineOf(h, facts), When: time.Now().UTC()}
	var trouble error
	for _, n := range perCPU {
		threads := n * len(facts.CPUs)
		if threads > probe.MaxYielders {
			break
		}
		a, err := yield(ctx, h, args, probe.Yield{Threads: threads, On: facts.CPUs, Span: step})
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			trouble = err
			continue
		}
		s := Step{Threads: threads, Share: a.CPU.Seconds() / a.Took.Seconds() / float64(len(facts.CPUs))}
		if s.Share >= leastShare {
			s.Rate = float64(a.Ops) / a.CPU.Seconds()
		}
		m.Steps = append(m.Steps, s)
		if s.Rate > m.Rate {
			m.Rate, m.Threads = s.Rate, threads
		}
	}
	if m.Rate == 0 {
		return nil, errors.Join(errors.New("measure the maximum of context switches: the CPUs were too busy: "+
			"try again when the host has less to do"), trouble)
	}
	return m, nil
}

// yield has one load in a process of its own, so that threads that do not end in time are ended with it.
func yield(ctx context.Context, h *host.Host, args []string, y probe.Yield) (probe.Answer, error) {
	l, err := probe.Start(ctx, h, args)
	if err != nil {
		return probe.Answer{}, err
	}
	defer l.Close()
	return l.Do(ctx, probe.Order{Yield: &y}, y.Span)
}

// maximumFile is where the maximum is kept in the state directory. It is no document of the journal: a measurement is
// not undone, and is kept also while the agent has the lock.
const maximumFile = "switches-maximum.json"

// Keep writes a maximum into the state directory. Callers do so one at a time.
func (m *Maximum) Keep(dir string) error {
	text, err := json.Marshal(m)
	if err != nil {
		return err
	}
	name := filepath.Join(dir, maximumFile)
	if _, err := atomicfile.Write(atomicfile.OS{}, name, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("keep the maximum of context switches: %w", err)
	}
	return nil
}

// Kept gives the maximum that was kept in the state directory, and says what of the machine differs now. It is nil
// where none was measured.
func Kept(dir string, now Machine) (*Maximum, error) {
	text, err := atomicfile.OS{}.ReadFile(filepath.Join(dir, maximumFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	m := &Maximum{}
	if err == nil {
		err = json.Unmarshal(text, m)
	}
	if err != nil {
		return nil, fmt.Errorf("read the kept maximum of context switches: %w; `bulkhead switches --measure-maximum` "+
			"measures it anew", err)
	}
	m.Stale = m.Machine.Differs(now)
	return m, nil
}
