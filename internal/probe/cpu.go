package probe

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Spin burns CPU on so many threads.
type Spin struct {
	Threads int           `json:"threads"`
	On      []int         `json:"on,omitempty"` // the CPUs to stay on; none: wherever it may
	Warm    time.Duration `json:"warm"`         // before it is measured
	Span    time.Duration `json:"span"`
}

// edge is a moment with the run time that all threads had until then.
type edge struct {
	at  time.Time
	cpu time.Duration
}

func edgeNow() (edge, error) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return edge{}, fmt.Errorf("read its own run time: %w", err)
	}
	return edge{time.Now(), time.Duration(u.Utime.Nano() + u.Stime.Nano())}, nil
}

// spinGap is how long a thread has to stand still for its return to count as the beginning of a period of a quota.
// Between two such moments lie whole periods, so that what is measured between them is not one period's run time too
// much or too little.
const spinGap = 2 * time.Millisecond

func (s *Spin) run(ctx context.Context) (a Answer, err error) {
	if s.Threads < 1 || s.Threads > 1024 {
		return a, fmt.Errorf("%d threads", s.Threads)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return a, fmt.Errorf("read on which CPUs it may run: %w", err)
	}
	a.May = cpusOf(&set)
	ctx, cancel := context.WithTimeout(ctx, s.Warm+s.Span)
	defer cancel()
	var mu sync.Mutex
	var group sync.WaitGroup
	w := &watcher{warm: time.Now().Add(s.Warm)}
	for i := range s.Threads {
		group.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread keeps its CPUs for itself, and ends with the goroutine
			if pinErr := pin(s.On); pinErr != nil {
				mu.Lock()
				err = pinErr
				mu.Unlock()
				return
			}
			watch := func(bool) {}
			if i == 0 {
				watch = w.look
			}
			ran := spin(ctx, watch)
			mu.Lock()
			defer mu.Unlock()
			for _, cpu := range ran {
				if !slices.Contains(a.Ran, cpu) {
					a.Ran = append(a.Ran, cpu)
				}
			}
		})
	}
	group.Wait()
	if err != nil {
		return a, err
	}
	slices.Sort(a.Ran)
	a.CPU, a.Took = w.measured(s.Span)
	return a, nil
}

// watcher takes the moments between which is measured: from the end of the warm-up to the end, or from one moment at
// which the thread had stood still to another where these are far enough apart.
type watcher struct {
	warm         time.Time // when it is over
	whole, sharp [2]edge
}

func (w *watcher) look(stood bool) {
	now, err := edgeNow()
	if err != nil {
		return
	}
	early := now.at.Before(w.warm)
	if stood {
		if w.sharp[0].at.IsZero() || early {
			w.sharp[0] = now
		}
		w.sharp[1] = now
	}
	if w.whole[0].at.IsZero() || early {
		w.whole[0] = now
	}
	w.whole[1] = now
}

func (w *watcher) measured(span time.Duration) (cpu, took time.Duration) {
	between := w.whole
	if w.sharp[1].at.Sub(w.sharp[0].at) > span/2 {
		between = w.sharp
	}
	return between[1].cpu - between[0].cpu, between[1].at.Sub(between[0].at)
}

// spin burns CPU until the end, and gives the CPUs on which it was seen.
func spin(ctx context.Context, watch func(stood bool)) (ran []int) {
	end, _ := ctx.Deadline()
	last := time.Now()
	for n := 0; ; n++ {
		now := time.Now()
		stood := now.Sub(last) > spinGap
		if stood || n%4096 == 0 {
			watch(stood)
			if cpu := currentCPU(); cpu >= 0 && !slices.Contains(ran, cpu) {
				ran = append(ran, cpu)
			}
		}
		last = now
		if now.After(end) || n%4096 == 0 && ctx.Err() != nil {
			watch(false)
			return ran
		}
	}
}

// currentCPU is the one on which the thread runs at this moment, -1 when it cannot be told.
func currentCPU() int {
	var cpu uint32
	if _, _, errno := syscall.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); errno != 0 {
		return -1
	}
	return int(cpu)
}

// pin keeps the thread on some CPUs.
func pin(cpus []int) error {
	if len(cpus) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, cpu := range cpus {
		set.Set(cpu)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("stay on CPU %v: %w", cpus, err)
	}
	return nil
}

func cpusOf(set *unix.CPUSet) (cpus []int) {
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			cpus = append(cpus, i)
		}
	}
	return cpus
}
