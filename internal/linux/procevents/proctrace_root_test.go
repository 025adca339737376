//go:build root

package procevents

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func openTrace(t *testing.T, o Options) *Trace {
	t.Helper()
	s, err := OpenTrace(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// What the tracepoints tell of a process is what the connector tells, but for a change of user or group; of threads
// they tell nothing.
func TestLiveProcTrace(t *testing.T) {
	s := openTrace(t, Options{Lazy: 100 * time.Millisecond})
	began := time.Now()
	cmd := exec.Command("perl", "-e", `$0 = "renamed"; exec "sleep", "0.1"`)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 0, Gid: 12345}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	var order []string
	var first, last int64
	lost := heard(t, s, "the end of a process", func(e Event) bool {
		if e.PID != pid {
			return false
		}
		if e.Kind == Fork {
			if first = e.Time; e.Parent != os.Getpid() {
				t.Errorf("forked by %d, not by %d", e.Parent, os.Getpid())
			}
		}
		order, last = append(order, e.Kind.String()), e.Time
		return e.Kind == Exit
	})
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	// An exec changes the name first; a Read that ends between the two tells of that as well.
	if got := strings.Join(order,
		" "); !regexp.MustCompile("^fork (comm )?exec comm (comm )?exec exit$").MatchString(got) || lost != 0 {
		t.Errorf("heard %q, %d lost", got, lost)
	}
	if took := time.Duration(last - first); took < 100*time.Millisecond || took > time.Since(began) {
		t.Errorf("by the times of its events it lived %v", took)
	}
}

func TestLiveProcTraceLeavesThreadsOut(t *testing.T) {
	s := openTrace(t, Options{})
	cmd := exec.Command("perl", "-e", "print 1") // the end that is waited for
	threads := make(chan int, 8)
	for range cap(threads) {
		go func() { // a locked goroutine takes its thread with it
			runtime.LockOSThread()
			threads <- syscall.Gettid()
		}()
	}
	tids := map[int]bool{}
	for range cap(threads) {
		if tid := <-threads; tid != os.Getpid() {
			tids[tid] = true
		}
	}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	heard(t, s, "the end of a process", func(e Event) bool {
		if tids[e.PID] || tids[e.Parent] {
			t.Errorf("heard of a thread: %+v", e)
		}
		return e.Kind == Exit && e.PID == cmd.Process.Pid
	})
}

// Forks and exits wait, and an exec brings along what came before it.
func TestLiveProcTraceLazy(t *testing.T) {
	const lazy = 3 * time.Second
	s := openTrace(t, Options{Lazy: lazy})
	began := time.Now()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var order []string
	heard(t, s, "an exec", func(e Event) bool {
		if e.PID == cmd.Process.Pid {
			order = append(order, e.Kind.String())
		}
		return e.PID == cmd.Process.Pid && e.Kind == Exec
	})
	if took := time.Since(began); took > lazy/2 || strings.Join(order, " ") != "fork exec" {
		t.Errorf("%v after %v", order, took)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	began = time.Now()
	time.AfterFunc(50*time.Millisecond, func() { s.Within(time.Millisecond) })
	heard(t, s, "its end", func(e Event) bool { return e.PID == cmd.Process.Pid && e.Kind == Exit })
	if took := time.Since(began); took > lazy/2 {
		t.Errorf("its end was heard after %v", took)
	}
}

func TestLiveProcTraceOverrun(t *testing.T) {
	s := openTrace(t, Options{Buffer: 1})
	for range 100 {
		if err := exec.Command("true").Run(); err != nil {
			t.Fatal(err)
		}
	}
	events, lost, err := s.Read(nil)
	if err != nil || lost == 0 || len(events) >= 300 {
		t.Fatalf("%d events, %d lost, %v", len(events), lost, err)
	}
	cmd := exec.Command("true") // and it goes on
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	heard(t, s, "an event after the overrun", func(e Event) bool { return e.Kind == Exec && e.PID == cmd.Process.Pid })
}

func TestLiveProcTraceClose(t *testing.T) { endsWithClose(t, openTrace(t, Options{})) }

// Where tracefs is mounted for a moment, it is for one thread, which is gone then: what this process sees of mounts
// stays as it is, whichever thread it began in.
func TestOwnThreadIsGone(t *testing.T) {
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		done := make(chan string, 1)
		go inOwnThread(func() {
			if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
				done <- err.Error()
				return
			}
			other, err := os.Readlink("/proc/thread-self/ns/mnt")
			if err != nil || other == ours {
				done <- fmt.Sprintf("the thread is in %s: %v", other, err)
			}
			done <- ""
		})
		if wrong := <-done; wrong != "" {
			t.Fatal(wrong)
		}
	}
	within := func() bool {
		threads, err := filepath.Glob("/proc/self/task/*/ns/mnt")
		if err != nil || len(threads) == 0 {
			t.Fatalf("no threads: %v", err)
		}
		for _, link := range append(threads, "/proc/self/ns/mnt") {
			if now, err := os.Readlink(link); err == nil && now != ours {
				return false
			}
		}
		return true
	}
	for end := time.Now().Add(10 * time.Second); !within(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a thread is still in another mount namespace")
		}
	}
}
