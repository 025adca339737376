package bench

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// phase is one arrangement of the database and its neighbours.
type phase struct {
	name       string
	text       string
	neighbours bool // CPU hogs, a memory hog and a disk hog
	strangers  bool // CPU hogs that match no rule
	governed   bool // the policy is applied
}

// The phases, in the order of one round. The policy is applied once and released once in a round, and
// the database is alone at both ends: the two are the control, and their mean, against which the
// others are held, takes a steady drift of the machine out.
const (
	phaseAlone                = "alone"
	phaseNeighboursFree       = "neighbours"
	phaseNeighboursHeld       = "neighbours-policy"
	phaseStrangersHeld        = "strangers-policy"
	phaseStrangersFree        = "strangers"
	phaseAloneAgain           = "alone-again"
	settle                    = 2 * time.Second // for hogs to get going before the load starts
	hogGrace                  = time.Minute     // hogs end by themselves this long after their phase
	memoryHogRestart          = time.Second
	demoRoot                  = "bulkhead-demo"
	groupDatabase             = "mysql"
	groupCPU                  = "reports"
	groupMemory               = "import"
	groupDisk                 = "backup"
	diskHogBytes        int64 = 128 << 20
)

var phases = []phase{
	{name: phaseAlone, text: "alone"},
	{name: phaseStrangersFree, text: "beside strangers, no policy", strangers: true},
	{name: phaseNeighboursFree, text: "beside hogs, no policy", neighbours: true},
	{name: phaseNeighboursHeld, text: "beside hogs, policy applied", neighbours: true, governed: true},
	{name: phaseStrangersHeld, text: "beside strangers, policy applied", strangers: true, governed: true},
	{name: phaseAloneAgain, text: "alone again"},
}

// sizes is how hard the demo pushes, fitted to the machine.
type sizes struct {
	threads   int   // of the load generator
	hogs      int   // CPU hogs
	cpuLimit  int   // cores that the CPU hogs may use together under the policy
	memory    int64 // what the memory hog allocates, bytes
	memoryMax int64 // what the policy leaves it, bytes
	writeRate int64 // what the policy leaves the disk hog, bytes per second
}

// sizesFor fits the demo to a machine: two load threads for each CPU and 16 hogs on two CPUs, more on more,
// and never more than a quarter of the available memory. With one load thread for each CPU the CPUs idle
// between two statements, and what a hog does there slows down the other CPU, where the two are threads of
// one core: 90 % of the solo throughput under the policy, against 96 % with two. With four of them,
// 16 hogs without a policy no longer cost the database more than half (medians on two CPUs, kernel 6.18).
func sizesFor(m machine) (sizes, error) {
	s := sizes{
		threads:   max(4, 2*m.cpus),
		hogs:      max(16, 8*m.cpus),
		cpuLimit:  max(1, m.cpus/2),
		memory:    min(1<<30, m.available/4) / hogStep * hogStep,
		writeRate: 20 << 20,
	}
	s.memoryMax = min(256<<20, s.memory/2) / hogStep * hogStep
	if s.memoryMax < 16<<20 {
		return sizes{}, &RequirementError{
			Reason: fmt.Sprintf("only %s of memory is available, and the demo's memory hog takes no more than a quarter of it", bytesText(m.available)),
			Hint:   "make at least 128 MiB available",
		}
	}
	return s, nil
}

// sample is what one phase of one round measured.
type sample struct {
	load  load
	usage map[string]usage // by group path, over the phase; only when governed
}

// rounds runs every phase of every round.
func (d *demo) rounds(ctx context.Context) error {
	for round := range d.options.Rounds {
		rates := make([]string, 0, len(phases))
		for i, ph := range phases {
			d.progress.phase(fmt.Sprintf("round %d of %d: %s", round+1, d.options.Rounds, ph.text))
			if err := d.govern(ctx, ph.governed); err != nil {
				return err
			}
			s, err := d.measure(ctx, ph)
			if err != nil {
				return fmt.Errorf("phase %d, %q: %w", i+1, ph.text, err)
			}
			d.samples[ph.name] = append(d.samples[ph.name], s)
			rates = append(rates, fmt.Sprintf("%s %s", ph.name, number(s.load.rate())))
		}
		d.progress.note(fmt.Sprintf("round %d of %d, transactions/s: %s", round+1, d.options.Rounds, strings.Join(rates, ", ")))
	}
	return nil
}

// govern applies or releases the policy when it is not yet as wanted.
func (d *demo) govern(ctx context.Context, wanted bool) error {
	if wanted == d.product.unreleased {
		return nil
	}
	if !wanted {
		return d.product.releaseAll(ctx)
	}
	if !d.asked {
		notes, err := d.product.notes(ctx)
		if err != nil {
			return err
		}
		d.notes, d.asked = notes, true
	}
	return d.product.apply(ctx)
}

// measure lets the phase's neighbours loose, waits until they have got going, and runs the load.
func (d *demo) measure(ctx context.Context, ph phase) (s sample, err error) {
	length := time.Duration(d.options.Seconds) * time.Second
	herd := d.unleash(ctx, ph, length)
	defer func() {
		if hogErr := herd.stop(); hogErr != nil && err == nil {
			err = hogErr
		}
	}()
	if ph.neighbours || ph.strangers {
		sleep(ctx, settle)
	}
	args := d.load.command("run", length)
	if !ph.governed {
		s.load, err = d.runLoad(ctx, args, length)
		return s, err
	}
	before, err := d.meter.read()
	if err != nil {
		return s, err
	}
	start := time.Now()
	if s.load, err = d.runLoad(ctx, d.product.run(groupDatabase, args), length); err != nil {
		return s, err
	}
	after, err := d.meter.read()
	if err != nil {
		return s, err
	}
	s.usage = between(before, after, time.Since(start))
	return s, nil
}

// herd is the hogs of one phase.
type herd struct {
	nursery  *nursery
	stopping chan struct{}
	wait     sync.WaitGroup
	mu       sync.Mutex
	errs     []error
}

// unleash starts the hogs of a phase. One that cannot start, or ends by itself, makes stop fail.
func (d *demo) unleash(ctx context.Context, ph phase, length time.Duration) *herd {
	h := &herd{nursery: d.nursery, stopping: make(chan struct{})}
	lasts := "--for=" + (settle + length + hogGrace).String()
	hog := func(group, kind string, args ...string) []string {
		command := append([]string{d.options.Binary, "bench", "hog", kind, lasts}, args...)
		if ph.governed && group != "" {
			return d.product.run(group, command)
		}
		return command
	}
	if ph.neighbours {
		h.keep(ctx, hog(groupMemory, "memory", fmt.Sprintf("--bytes=%d", d.sizes.memory)), true)
		h.keep(ctx, hog(groupDisk, "disk", "--file="+hogFilePath(d.dir)), false)
	}
	// The loudest last: it slows down what is started after it.
	busy := fmt.Sprintf("--programs=%d", d.sizes.hogs)
	switch {
	case ph.neighbours:
		h.keep(ctx, hog(groupCPU, "cpu", busy), false)
	case ph.strangers:
		h.keep(ctx, hog("", "cpu", busy), false)
	}
	return h
}

// keep runs one hog until the herd stops. A mortal one, which its group's memory limit kills, is
// started again as a service would be; any other that ends by itself is an error.
func (h *herd) keep(ctx context.Context, args []string, mortal bool) {
	h.wait.Go(func() {
		for {
			var complaints bytes.Buffer
			c, err := h.nursery.start(spec{args: args, stderr: &complaints})
			if err != nil {
				h.fail(err)
				return
			}
			select {
			case <-h.stopping:
				c.kill()
				return
			case <-ctx.Done():
				c.kill()
				return
			case <-c.done:
			}
			if !mortal || !c.killed() {
				h.fail(fmt.Errorf("run hog %q: it ended by itself (%v)\n%s", args, c.cmd.ProcessState, lastLines(complaints.String(), 5)))
				return
			}
			select {
			case <-h.stopping:
				return
			case <-ctx.Done():
				return
			case <-time.After(memoryHogRestart):
			}
		}
	})
}

func (h *herd) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs = append(h.errs, err)
}

// stop kills the hogs, waits for them, and says if one had not done its work.
func (h *herd) stop() error {
	close(h.stopping)
	h.wait.Wait()
	if len(h.errs) == 0 {
		return nil
	}
	return h.errs[0] // they fail alike
}
