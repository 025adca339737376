//go:build root

package procfs_test

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// crowdSize is how many sleeping processes BenchmarkCrowd looks at.
const crowdSize = 20000

// lookVariable makes a copy of the test binary a process that looks at the table three times and says what that took.
const lookVariable = "BULKHEAD_TEST_HOST_LOOK"

func init() {
	if os.Getenv(lookVariable) == "" {
		return
	}
	if err := lookThrice(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// lookThrice prints the CPU time, in ns, of a first look, of a second full one and of one that goes by events of
// which there were none, and the most memory that it needed, in KiB.
func lookThrice() error {
	s := host.New("/").Proc.NewScanner()
	defer s.Close()
	var took [3]int64
	for i, look := range []func() ([]procfs.Process, bool, error){
		func() ([]procfs.Process, bool, error) { return s.Look(true) },
		func() ([]procfs.Process, bool, error) { return s.Look(true) },
		func() ([]procfs.Process, bool, error) { return s.Follow(nil, nil) },
	} {
		before := used(unix.RUSAGE_SELF)
		procs, _, err := look()
		took[i] = used(unix.RUSAGE_SELF) - before
		if err != nil {
			return err
		}
		if len(procs) < crowdSize {
			return fmt.Errorf("look %d: %d processes", i, len(procs))
		}
	}
	var all unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &all); err != nil {
		return err
	}
	_, err := fmt.Println(took[0], took[1], took[2], all.Maxrss)
	return err
}

func used(who int) int64 {
	var u unix.Rusage
	if unix.Getrusage(who, &u) != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// crowd starts sleeping processes in a pid namespace of their own, so that all of them end with its first one.
func crowd(b *testing.B) {
	b.Helper()
	cmd := exec.Command("sh", "-c",
		fmt.Sprintf("i=0; while [ $i -lt %d ]; do sleep 3600 & i=$((i+1)); done; echo ready; wait", crowdSize))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	var ready string
	if _, err := fmt.Fscanln(out, &ready); err != nil {
		b.Fatalf("start %d processes: %v", crowdSize, err)
	}
	time.Sleep(3 * time.Second) // none of them is young any more
}

// BenchmarkCrowd holds the CPU time of a look at 20,000 sleeping processes to that of ps in the same run: at most
// 0.75 of it the first time, 0.35 when it looks again at the stat of each, 0.05 when it goes by events; and the
// memory to 60 MiB.
func BenchmarkCrowd(b *testing.B) {
	crowd(b)
	ps := func() float64 {
		cmd := exec.Command("ps", "-eo", "pid,args")
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
		return float64(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime())
	}
	look := func() (took [3]float64, kib float64) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), lookVariable+"=1")
		out, err := cmd.Output()
		if err == nil {
			_, err = fmt.Sscan(string(out), &took[0], &took[1], &took[2], &kib)
		}
		if err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		return took, kib
	}
	const pairs = 9
	var ratios [4][]float64 // first, second, by events; and ps to ps
	memory := 0.0
	for b.Loop() {
		for range pairs {
			base := ps()
			took, kib := look()
			ratios[3] = append(ratios[3], ps()/base)
			for i := range took {
				ratios[i] = append(ratios[i], took[i]/base)
			}
			memory = max(memory, kib/1024)
		}
	}
	for i := range ratios {
		slices.Sort(ratios[i])
	}
	same := ratios[3]
	var said []string
	for i, bound := range []struct {
		name string
		most float64
	}{{"first/ps", 0.75}, {"second/ps", 0.35}, {"events/ps", 0.05}} {
		median := ratios[i][len(ratios[i])/2]
		b.ReportMetric(median, bound.name)
		said = append(said, fmt.Sprintf("%s %.3f (%.3f to %.3f)", bound.name, median, ratios[i][0],
			ratios[i][len(ratios[i])-1]))
		if median > bound.most*same[len(same)-1] { // met, or within what ps is off against itself
			b.Errorf("%s: %.3f, more than %.2f, ps against itself %.2f to %.2f", bound.name, median, bound.most,
				same[0], same[len(same)-1])
		}
	}
	b.ReportMetric(memory, "MiB")
	if memory > 60 {
		b.Errorf("it needs %.0f MiB", memory)
	}
	b.Logf("%s; ps against itself %.2f to %.2f; %.0f MiB at most", strings.Join(said, ", "), same[0], same[len(same)-1],
		memory)
}
