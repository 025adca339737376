//go:build root

package bpfcount

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/testhost"
)

// exchange has two threads wake each other by turns. Each works for a time between, and done is called after both have.
func exchange(work func(), done func()) {
	var there, back [2]int
	_, _ = unix.Pipe(there[:]), unix.Pipe(back[:])
	side := func(from, to int, after func()) {
		runtime.LockOSThread()
		var b [1]byte
		for {
			_, _ = unix.Read(from, b[:])
			work()
			after()
			_, _ = unix.Write(to, b[:])
		}
	}
	go side(there[0], back[1], func() {})
	_, _ = unix.Write(there[1], []byte{0})
	side(back[0], there[1], done)
}

// pingPong switches between two threads as often as it can, until it is killed.
func pingPong() { exchange(func() {}, func() {}) }

// serve works off requests of two switches and some 60 µs each. For each line on its input it does so for a fifth of a
// second, and says how many there were for each second of its CPU time, and of the clock, and in how many nanoseconds
// 99 of 100 were done.
func serve() {
	debug.SetGCPercent(-1)
	loops := 1000
	spin := func() {
		x := uint64(loops)
		for range loops {
			x = x*6364136223846793005 + 1442695040888963407
		}
		runtime.KeepAlive(x)
	}
	for best := time.Duration(0); best < 26*time.Microsecond; loops += loops / 8 {
		best = time.Hour
		for range 50 {
			begun := time.Now()
			spin()
			best = min(best, time.Since(begun))
		}
	}
	in := bufio.NewReader(os.Stdin)
	fmt.Println("ready")
	if _, err := in.ReadString('\n'); err != nil {
		return
	}
	took := make([]time.Duration, 0, 1<<14)
	begun, used := time.Now(), cpuTime()
	last := begun
	exchange(spin, func() {
		now := time.Now()
		took = append(took, now.Sub(last))
		last = now
		if now.Sub(begun) < 200*time.Millisecond {
			return
		}
		slices.Sort(took)
		n := float64(len(took))
		fmt.Println(n/(cpuTime()-used).Seconds(), n/now.Sub(begun).Seconds(), took[len(took)*99/100].Nanoseconds())
		if _, err := in.ReadString('\n'); err != nil {
			os.Exit(0)
		}
		took = took[:0]
		begun, used = time.Now(), cpuTime()
		last = begun
	})
}

// cpuTime is what this process has used of CPUs.
func cpuTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// child starts the test's program as a load of a group, on one CPU.
func (b *bench) child(t testing.TB, what, group string, cpu int) (io.Writer, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", what)
	cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	in, err := cmd.StdinPipe()
	check(t, err)
	out, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() }) // it is killed
	pin(t, cmd.Process.Pid, cpu)
	check(t, b.tree.Move(b.dirs[group], testhost.Identify(t, cmd.Process.Pid)))
	return in, bufio.NewReader(out)
}

// BenchmarkSwitch is what a switch costs, with the wake-ups and moves that belong to it, at as many switches as this
// host does: by two pairs of threads of two groups on each CPU. It fails above 300 ns, and below 50,000 switches a
// second. What the kernel's clock takes is in it.
func BenchmarkSwitch(b *testing.B) {
	c := counting(b)
	groups := groupsOf(b, "one", "two")
	for cpu := range runtime.NumCPU() {
		groups.child(b, "pingpong", "one", cpu)
		groups.child(b, "pingpong", "two", cpu)
	}
	check(b, c.Watch(groups.ids))
	stats, err := CountCost()
	if err != nil {
		b.Skip(err)
	}
	defer stats.Close()
	before, err := c.Cost()
	check(b, err)
	begun := time.Now()
	for b.Loop() {
		time.Sleep(time.Second)
	}
	after, err := c.Cost()
	check(b, err)
	switches := float64(after.Switches - before.Switches)
	ns, rate := float64(after.Took-before.Took)/switches, switches/time.Since(begun).Seconds()
	b.ReportMetric(ns, "ns/switch")
	b.ReportMetric(rate, "switches/s")
	if rate < 50_000 {
		b.Errorf("%.0f switches a second: the bound is for 50,000", rate)
	}
	if ns > 300 {
		b.Errorf("%.0f ns a switch, at most 300", ns)
	}
}

// BenchmarkBesideALoad is what a load that has 50,000 switches a second loses to the programs: blocks of a fifth of a
// second with and without, by turns. Throughput is requests for each second of CPU time, so that other work of the host
// does not count. It fails when the median of what a block with them has of those without around it
// is beyond its bound, also beside what the two without have of each other.
func BenchmarkBesideALoad(b *testing.B) {
	c := counting(b)
	groups := groupsOf(b, "one", "two")
	groups.weigh(b, 100)
	type load struct {
		in  io.Writer
		out *bufio.Reader
	}
	var loads []load
	for cpu := range runtime.NumCPU() {
		in, out := groups.child(b, "serve", []string{"one", "two"}[cpu%2], cpu)
		loads = append(loads, load{in, out})
		_, err := out.ReadString('\n')
		check(b, err)
	}
	block := func(on bool) (rate, p99, switches float64) {
		if on {
			check(b, c.Watch(groups.ids))
		} else {
			check(b, c.detach())
		}
		for _, l := range loads {
			_, err := io.WriteString(l.in, "\n")
			check(b, err)
		}
		for _, l := range loads {
			var one, done, ns float64
			_, err := fmt.Fscanln(l.out, &one, &done, &ns)
			check(b, err)
			rate, p99, switches = rate+one, max(p99, ns), switches+2*done
		}
		return rate, p99, switches
	}
	for b.Loop() {
		var rates, p99s, same, same99, without []float64
		for range 40 {
			offA, tail, n := block(false)
			on, tailOn, _ := block(true)
			offB, tailB, _ := block(false)
			rates, p99s = append(rates, on/((offA+offB)/2)), append(p99s, tailOn/((tail+tailB)/2))
			same, same99 = append(same, offB/offA), append(same99, tailB/tail)
			without = append(without, n)
		}
		b.ReportMetric(median(rates), "throughput")
		b.ReportMetric(median(same), "throughput-A/A")
		b.ReportMetric(median(p99s), "p99")
		b.ReportMetric(median(same99), "p99-A/A")
		b.ReportMetric(median(without), "switches/s")
		b.Logf("throughput %.4f (A/A %.4f), p99 %.4f (A/A %.4f)", median(rates), median(same), median(p99s),
			median(same99)) // a benchmark that fails prints no metrics
		if n := median(without); n < 50_000 {
			b.Errorf("%.0f switches a second: the bound is for 50,000", n)
		}
		if r := median(rates); r < 0.99 && r < 0.99*median(same) {
			b.Errorf("throughput is %.4f of that without, at least 0.99; without by itself %.4f", r, median(same))
		}
		if r := median(p99s); r > 1.02 && r > 1.02*median(same99) {
			b.Errorf("p99 is %.4f of that without, at most 1.02; without by itself %.4f", r, median(same99))
		}
	}
}

// detach has the programs stay loaded and count nothing.
func (c *Counter) detach() error {
	var errs []error
	for _, l := range c.links {
		errs = append(errs, l.Close())
	}
	c.links = nil
	return errors.Join(errs...)
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}
