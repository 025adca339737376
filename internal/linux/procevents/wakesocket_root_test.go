//go:build root

package procevents

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"

	"golang.org/x/sys/unix"
)

// With a wake socket a program that starts is read at once, with the fork before it; its exit alone wakes nobody, until
// somebody asks for what there is of one who waits.
func TestLazyProcEvents(t *testing.T) {
	s := openEvents(t, Options{Lazy: time.Hour})
	if s.wakes == nil {
		t.Fatal("no wakeSocket")
	}
	if err := s.file.SetReadDeadline(time.Now()); !errors.Is(err, os.ErrNoDeadline) {
		t.Errorf("the first socket wakes a thread of the runtime, too: %v", err)
	}
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	var order []Kind
	heard(t, s, "the program's start", func(e Event) bool {
		if e.PID == pid {
			order = append(order, e.Kind)
		}
		return e.PID == pid && e.Kind == Exec
	})
	if !slices.Equal(order, []Kind{Fork, Exec}) {
		t.Errorf("heard %v", order)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	time.AfterFunc(50*time.Millisecond, func() { s.Within(time.Millisecond) })
	heard(t, s, "its end", func(e Event) bool { return e.PID == pid && e.Kind == Exit })
}

// The wake socket gets neither exits nor the forks of threads: they are for nobody now.
func TestWakeSocketTakesStartsOnly(t *testing.T) {
	s := openEvents(t, Options{Lazy: time.Hour}) // without a subscription the kernel sends nothing
	for range 10 {
		made := make(chan struct{})
		go func() { // the thread ends with it
			runtime.LockOSThread()
			close(made)
		}()
		<-made
	}
	cmd := exec.Command("true")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	late := time.AfterFunc(10*time.Second, func() { _ = s.Close() })
	defer late.Stop()
	kinds := map[Kind]bool{}
	for !kinds[Exec] {
		var n int
		var got error
		if err := s.wakes.conn.Read(func(fd uintptr) bool {
			n, got = s.wakes.in.receive(int(fd))
			return !errors.Is(got, unix.EAGAIN)
		}); err != nil || got != nil {
			t.Fatal(err, got)
		}
		s.wakes.parse(n)
		for _, m := range s.wakes.woken {
			if m.what == Fork && m.ids[2] != m.ids[3] || m.what == Exit {
				t.Errorf("got %+v", m)
			}
			if int(m.ids[1]) == cmd.Process.Pid || m.what == Fork && int(m.ids[3]) == cmd.Process.Pid {
				kinds[m.what] = true
			}
		}
	}
	if !kinds[Fork] {
		t.Errorf("of a start it got %v", kinds)
	}
}

// Whoever asks for a reading gets it, also from a reader that was busy when the time came, and however often others
// ask.
func TestLazyProcEventsWithin(t *testing.T) {
	for name, ask := range map[string]func(*Connector){
		"busy": func(s *Connector) { s.Within(time.Millisecond); time.Sleep(5 * time.Millisecond) },
		"often": func(s *Connector) {
			ticker := time.NewTicker(10 * time.Millisecond)
			t.Cleanup(ticker.Stop)
			go func() {
				for range 1000 {
					s.Within(20 * time.Millisecond)
					<-ticker.C
				}
			}()
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openEvents(t, Options{Lazy: time.Hour})
			cmd := exec.Command("sleep", "600")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			heard(t, s, "the program's start", func(e Event) bool { return e.PID == cmd.Process.Pid && e.Kind == Exec })
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait()
			ask(s)
			heard(t, s, "its end", func(e Event) bool { return e.PID == cmd.Process.Pid && e.Kind == Exit })
		})
	}
}

// In a churn on all CPUs nothing is lost, and nothing is said to be.
func TestLazyProcEventsLoseNothing(t *testing.T) {
	const at = 4
	each := 300
	if os.Getenv("BULKHEAD_LAB") != "" { // an emulated machine starts ten programs in a second
		each = 50
	}
	s := openEvents(t, Options{Lazy: 5 * time.Millisecond})
	late := time.AfterFunc(2*time.Minute, func() { _ = s.Close() })
	defer late.Stop()
	started := make(chan int, each*at)
	var wait sync.WaitGroup
	for range at {
		wait.Go(func() {
			for range each {
				cmd := exec.Command("true")
				if err := cmd.Run(); err != nil {
					t.Error(err)
					return
				}
				started <- cmd.Process.Pid
			}
		})
	}
	done := make(chan struct{})
	go func() { wait.Wait(); close(started); close(done) }()
	exits := map[int]int{}
	lost := 0
	var events []Event
	missing := func() bool {
		select {
		case <-done:
		default:
			return true
		}
		for pid := range started {
			exits[pid]--
		}
		for _, n := range exits {
			if n < 0 {
				return true
			}
		}
		return false
	}
	for missing() {
		var n int
		var err error
		if events, n, err = s.Read(events); err != nil {
			t.Fatalf("waited in vain for %d programs' ends: %v", each*at, err)
		}
		lost += n
		for _, e := range events {
			if e.Kind == Exit {
				exits[e.PID]++
			}
		}
	}
	if lost != 0 {
		t.Errorf("%d events are said to be lost", lost)
	}
}

func TestLazyProcEventsEnd(t *testing.T) {
	s := openEvents(t, Options{Lazy: time.Hour})
	ended := make(chan error, 1)
	go func() {
		for {
			if _, _, err := s.Read(nil); err != nil {
				ended <- err
				return
			}
		}
	}()
	time.Sleep(20 * time.Millisecond)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("a reader waits on")
	}
}

func TestPeekOnTheMachine(t *testing.T) {
	k := procfs.New(sysroot.New("/")).NewPeeker()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	pid := os.Getpid()
	if exe, err := k.Executable(pid); err != nil || exe != self {
		t.Errorf("it runs %q, %v", exe, err)
	}
	if exe, err := k.Executable(2); err != nil || exe != "" {
		t.Errorf("kthreadd runs %q, %v", exe, err)
	}
	p, err := k.Peek(pid, func(p *procfs.Process) bool { return len(p.Args) > 0 && p.Cgroups == nil })
	if err != nil || p.Exe != self || len(p.Cgroups) == 0 || p.UID != os.Geteuid() || p.Start != 0 {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err = k.Peek(pid, func(*procfs.Process) bool { return false }); err != nil || p.Cgroups != nil {
		t.Errorf("more was read than asked for: %+v, %v", p, err)
	}
	const nobody = 1<<22 + 1
	if _, err := k.Executable(nobody); !errors.Is(err, procfs.ErrExited) {
		t.Errorf("of nobody: %v", err)
	}
	if _, err := k.Peek(nobody, func(*procfs.Process) bool { return true }); !errors.Is(err, procfs.ErrExited) {
		t.Errorf("of nobody: %v", err)
	}
}
