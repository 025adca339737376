package probe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// TestMain makes this binary a load, or somebody who starts one and is killed over it.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "be-a-load":
		if err := Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case len(os.Args) == 2 && os.Args[1] == "start-a-load":
		l, err := Start(context.Background(), host.New("/"), []string{"be-a-load"})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		_, _ = l.Do(context.Background(), Order{Fork: &Fork{Tasks: 40}}, time.Second)
		ctx, stop := context.WithTimeout(context.Background(), time.Millisecond) // it has its order and is about it
		_, _ = l.Do(ctx, Order{Spin: &Spin{Threads: 1, Span: time.Minute}}, time.Minute)
		stop()
		fmt.Println(l.ID.PID)
		select {}
	}
	os.Exit(m.Run())
}

func start(t *testing.T) *Load {
	t.Helper()
	l, err := Start(t.Context(), host.New("/"), []string{"be-a-load"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func do(t *testing.T, l *Load, o Order) Answer {
	t.Helper()
	a, err := l.Do(t.Context(), o, 2*time.Second)
	if err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	return a
}

func TestLoads(t *testing.T) {
	l := start(t)
	if a := do(t, l, Order{Spin: &Spin{Threads: 2, Warm: 50 * time.Millisecond,
		Span: 200 * time.Millisecond}}); a.CPU < 20*time.Millisecond || a.Took < 100*time.Millisecond ||
		len(a.May) == 0 || len(a.Ran) == 0 {
		t.Errorf("two busy threads: %+v", a)
	}
	one := start(t) // its threads keep their CPUs
	if a := do(t, one, Order{Spin: &Spin{Threads: 1, On: a0(t, l), Span: 100 * time.Millisecond}}); len(a.Ran) != 1 {
		t.Errorf("a thread that stays on one CPU ran on %v", a.Ran)
	}
	if a := do(t, l, Order{Fork: &Fork{Tasks: 30}}); a.Count != 30 || a.Refused {
		t.Errorf("30 tasks: %+v", a)
	}
	if a := do(t, l, Order{Touch: &Touch{Bytes: 4 << 20}}); a.Bytes != 4<<20 {
		t.Errorf("4 MiB of memory: %+v", a)
	}
	if _, err := l.Do(t.Context(), Order{}, 0); err == nil {
		t.Error("an order of nothing is done")
	}
	if a := do(t, l, Order{Fork: &Fork{Tasks: 20}}); a.Count != 20 {
		t.Errorf("after an error: %+v", a)
	}
}

// a0 is the first CPU that a load may run on.
func a0(t *testing.T, l *Load) []int {
	return do(t, l, Order{Spin: &Spin{Threads: 1, Span: 10 * time.Millisecond}}).May[:1]
}

func TestDiskLoads(t *testing.T) {
	dir := t.TempDir()
	l := start(t)
	for _, d := range []Disk{
		{Write: true, Size: 64 << 10, Depth: 4}, {Write: true, Size: 4096, Depth: 8, Random: true},
		{Write: true, Buffered: true, Size: 64 << 10, Depth: 4}, {Size: 64 << 10, Depth: 4},
	} {
		d.Dir, d.File, d.Most, d.Span = dir, 4<<20, 8<<20, 200*time.Millisecond
		a, err := l.Do(t.Context(), Order{Disk: &d}, time.Second)
		if err != nil && strings.Contains(err.Error(), errNoTemporary.Error()) {
			t.Skipf("%s: %v", dir, err)
		}
		if err != nil || a.Bytes == 0 || a.Ops == 0 || a.Took == 0 {
			t.Errorf("%+v: %+v, %v", d, a, err)
		}
	}
	if _, err := l.Do(t.Context(), Order{Disk: &Disk{Device: "/dev/null", Write: true, Size: 4096, Depth: 1}},
		0); err == nil {
		t.Error("a device was written")
	}
	a, err := l.Do(t.Context(), Order{Dirty: &Dirty{Dir: dir, Bytes: 1 << 20}}, time.Second)
	if err == nil {
		err = l.WriteBack(a.File)
	}
	if err != nil || a.Bytes != 1<<20 {
		t.Errorf("1 MiB through the page cache: %+v, %v", a, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files were left behind: %v, %v", left, err)
	}
}

func TestTraffic(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Sink(ctx, listener) }()
	l := start(t)
	for _, send := range []bool{true, false} {
		a := do(t, l, Order{Traffic: &Traffic{Peer: listener.Addr().String(), Send: send, Most: 1 << 30,
			Warm: 50 * time.Millisecond, Span: 800 * time.Millisecond}})
		if a.Bytes < 1<<20 || a.Took < 100*time.Millisecond || !strings.HasPrefix(a.Local, "127.0.0.1:") {
			t.Errorf("sending is %t: %+v", send, a)
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := l.Do(t.Context(), Order{Traffic: &Traffic{Peer: listener.Addr().String(), Span: time.Second}},
		time.Second); err == nil {
		t.Error("a peer that is gone was reached")
	}
}

// A load ends with the one that started it, whatever it is about, and with its orders.
func TestLoadEndsWithItsMaker(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	maker, err := os.StartProcess(procfs.SelfExe, []string{"maker", "start-a-load"},
		&os.ProcAttr{Files: []*os.File{nil, w, os.Stderr}})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	var buf [32]byte
	n, err := r.Read(buf[:])
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(buf[:n])))
	if err != nil {
		t.Fatal(err)
	}
	h := host.New("/")
	procs, err := h.Proc.Processes(procfs.Options{PIDs: []int{pid}})
	if err != nil || len(procs) != 1 {
		t.Fatalf("the load: %v, %v", procs, err)
	}
	if err := maker.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = maker.Wait()
	for end := time.Now().Add(5 * time.Second); h.Proc.Alive(procs[0].ID); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the load outlives the one that started it by 5 s")
		}
	}
	l := start(t)
	spinning := make(chan error)
	go func() {
		_, err := l.Do(t.Context(), Order{Spin: &Spin{Threads: 1, Span: time.Minute}}, time.Minute)
		spinning <- err
	}()
	l.Close()
	if h.Proc.Alive(l.ID) {
		t.Error("a load that was ended lives")
	}
	if err := <-spinning; !errors.Is(err, ErrEnded) {
		t.Errorf("a load that was ended answers: %v", err)
	}
}
