package watchdog

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// markVariable names a file that a watchdog of a test writes when it takes something back; makerVariable makes a copy
// of the test binary one that starts a watchdog and is killed.
const (
	markVariable  = "BULKHEAD_WATCHDOG_MARK"
	makerVariable = "BULKHEAD_WATCHDOG_MAKER"
)

func TestMain(m *testing.M) {
	mark := os.Getenv(markVariable)
	switch {
	case len(os.Args) == 2 && os.Args[1] == "watch":
		err := Watch(context.Background(), os.Stdin, os.Stdout,
			func(_ context.Context, o Order, why string, stuck int) error {
				return os.WriteFile(mark, fmt.Appendf(nil, "%s: %s %t", why, o.Undo, stuck != 0), 0o600)
			})
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case len(os.Args) == 2 && os.Args[1] == "die":
		os.Exit(0)
	case len(os.Args) == 2 && os.Args[1] == "deaf":
		time.Sleep(startTime + 3*time.Second)
		os.Exit(0)
	case os.Getenv(makerVariable) != "":
		if _, err := Start(context.Background(), []string{"watch"}, Order{Undo: json.RawMessage(`"it"`)}); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println("started")
		time.Sleep(time.Minute)
	}
	os.Exit(m.Run())
}

func marked(t *testing.T) (mark string) {
	t.Helper()
	mark = filepath.Join(t.TempDir(), "mark")
	t.Setenv(markVariable, mark)
	return mark
}

// within waits for the mark of an undo.
func within(t *testing.T, mark, want string, limit time.Duration) {
	t.Helper()
	begin := time.Now()
	for time.Since(begin) < limit {
		if text, err := os.ReadFile(mark); err == nil && len(text) > 0 {
			if !strings.Contains(string(text), want) {
				t.Errorf("taken back since %q, want %q", text, want)
			}
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not taken back within %s", limit)
}

func untouched(t *testing.T, mark string) {
	t.Helper()
	if text, err := os.ReadFile(mark); err == nil {
		t.Errorf("taken back: %s", text)
	}
}

// peer is a TCP service that can go away.
func peer(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	return l
}

func start(t *testing.T, o Order) *Watchdog {
	t.Helper()
	o.Undo = json.RawMessage(`"it"`)
	d, err := Start(t.Context(), []string{"watch"}, o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestSettled(t *testing.T) {
	mark := marked(t)
	d := start(t, Order{Peers: []string{peer(t).Addr().String()}, Deadline: time.Now().Add(time.Hour)})
	if err := d.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	untouched(t, mark)
}

func TestTakenBackByItsMaker(t *testing.T) {
	mark := marked(t)
	start(t, Order{}).Done()
	untouched(t, mark)
}

// A maker that is killed: the change is taken back at once.
func TestMakerIsKilled(t *testing.T) {
	mark := marked(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p, err := os.StartProcess(os.Args[0], []string{"maker"}, &os.ProcAttr{
		Env: append(os.Environ(), makerVariable+"=1"), Files: []*os.File{nil, w, os.Stderr},
	})
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bufio.NewReader(r).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	untouched(t, mark)
	p.Kill()
	p.Wait()
	within(t, mark, `is gone: "it" false`, 3*time.Second)
}

// A peer that goes: the maker is told first, and left alone when it takes the change back; else the watchdog does it
// within 10 s.
func TestPeerGetsOutOfReach(t *testing.T) {
	t.Parallel()
	for _, obeys := range []bool{true, false} {
		t.Run(fmt.Sprintf("obeys %t", obeys), func(t *testing.T) {
			l := peer(t)
			synctest.Test(t, func(t *testing.T) { peerIsLost(t, l, obeys) })
		})
	}
}

func peerIsLost(t *testing.T, l net.Listener, obeys bool) {
	t.Helper()
	in, maker := io.Pipe()
	said, out := io.Pipe()
	undone := make(chan string, 1)
	ended := make(chan error, 1)
	go func() {
		err := Watch(context.Background(), in, out, func(_ context.Context, _ Order, why string, stuck int) error {
			undone <- fmt.Sprint(why, stuck != 0)
			return nil
		})
		out.Close()
		ended <- err
	}()
	lines := bufio.NewScanner(said)
	order, _ := json.Marshal(Order{Peers: []string{l.Addr().String()}, Undo: json.RawMessage(`1`)})
	go maker.Write(append(order, '\n'))
	if lines.Scan(); lines.Text() != lineReady {
		t.Fatalf("it says %q", lines.Text())
	}
	stop := make(chan struct{})
	defer close(stop)
	defer in.Close()
	go func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(signEvery):
				io.WriteString(maker, lineAlive+"\n")
			}
		}
	}()
	l.Close()
	begin := time.Now()
	if lines.Scan(); !strings.HasPrefix(lines.Text(), lineUndo) {
		t.Fatalf("it says %q", lines.Text())
	}
	if obeys {
		io.WriteString(maker, lineDone+"\n")
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if len(undone) > 0 {
			t.Errorf("it took the change back as well: %s", <-undone)
		}
		return
	}
	if why := <-undone; !strings.Contains(why, "out of reachtrue") {
		t.Errorf("taken back since %q", why)
	}
	if took := time.Since(begin); took < peerGrace || took > 9*time.Second {
		t.Errorf("it took %s", took)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A watchdog that ends before it has read an order that no pipe holds, or never reads it, does not keep its maker.
func TestOrderIsNotRead(t *testing.T) {
	t.Parallel()
	big, err := json.Marshal(strings.Repeat("x", 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"die", "deaf"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			failed := make(chan error, 1)
			go func() {
				d, err := Start(t.Context(), []string{how}, Order{Undo: big})
				if err == nil {
					d.Done()
				}
				failed <- err
			}()
			select {
			case err := <-failed:
				if err == nil {
					t.Error("it is there, though it never said so")
				}
			case <-time.After(startTime + 10*time.Second):
				t.Fatal("it is still waited for")
			}
		})
	}
}

// Looking for peers once more takes its time, in which the maker's signs of life are not listened to: it is not taken
// for dead then, and has its time to obey.
func TestSettlingIsNoSilence(t *testing.T) {
	l := peer(t)
	l.Close()
	synctest.Test(t, func(t *testing.T) { settles(t, l.Addr().String()) })
}

func settles(t *testing.T, lost string) {
	t.Helper()
	said, out := io.Pipe()
	w := &watch{order: Order{Peers: []string{lost}}, out: out, heard: make(chan string), lost: make(chan string, 1)}
	type verdict struct {
		why   string
		alive bool
	}
	ended := make(chan verdict, 1)
	go func() {
		why, alive := w.wait(context.Background())
		ended <- verdict{why, alive}
	}()
	time.Sleep(silence - peerGrace + 200*time.Millisecond) // the last sign of life was that long ago
	w.heard <- lineSettle
	lines := bufio.NewScanner(said)
	if lines.Scan(); !strings.HasPrefix(lines.Text(), lineUndo) {
		t.Fatalf("it says %q", lines.Text())
	}
	select {
	case v := <-ended:
		t.Fatalf("it did not wait: %+v", v)
	case <-time.After(obedience / 2):
	}
	w.heard <- lineDone
	if v := <-ended; v.why != "" {
		t.Errorf("taken back, too: %+v", v)
	}
}

// A maker that runs, but gives no sign of life, is waited for longer than one that does not run.
func TestSlowMakerIsWaitedFor(t *testing.T) {
	runs, stuck := func() bool { return true }, func() bool { return false }
	for name, test := range map[string]struct {
		runs func() bool
		sign string // after nearly as long as one is waited for
		want time.Duration
	}{
		"stuck":         {stuck, "", silence + signEvery},
		"slow":          {runs, "", slowness},
		"slow, and not": {runs, lineSettle, 0},
		"slow twice":    {runs, "a sign of life", slowness - time.Second + slowness},
	} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			w := &watch{out: io.Discard, heard: make(chan string), runs: test.runs}
			if test.sign != "" {
				go func() {
					time.Sleep(slowness - time.Second)
					w.heard <- test.sign
				}()
			}
			why, alive := w.wait(context.Background())
			took := time.Since(begin)
			if (why != "") != (test.want > 0) || !alive || test.want > 0 && took.Round(signEvery) != test.want {
				t.Errorf("%s: after %s %q, %t; want it after %s", name, took, why, alive, test.want)
			}
		})
	}
}

// A process that computes runs, one that is stopped does not.
func TestRuns(t *testing.T) {
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	is := func(want bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); runs(cmd.Process.Pid) != want; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("runs is not %t", want)
			}
		}
	}
	is(true)
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	is(false)
}

func TestPeerOutOfReachBefore(t *testing.T) {
	mark := marked(t)
	l := peer(t)
	l.Close()
	order := Order{Peers: []string{l.Addr().String()}, Undo: json.RawMessage(`1`)}
	d, err := Start(t.Context(), []string{"watch"}, order)
	if err == nil || !strings.Contains(err.Error(), "out of reach before anything was changed") {
		t.Fatalf("%v, %v", d, err)
	}
	untouched(t, mark)
}

// A peer that is gone when the change is settled fails it.
func TestSettledOutOfReach(t *testing.T) {
	mark := marked(t)
	l := peer(t)
	d := start(t, Order{Peers: []string{l.Addr().String()}})
	l.Close()
	if err := d.Settle(t.Context()); err == nil || !strings.Contains(err.Error(), "out of reach") {
		t.Fatal(err)
	}
	d.Done()
	untouched(t, mark)
}

func TestDeadline(t *testing.T) {
	marked(t)
	d := start(t, Order{Deadline: time.Now().Add(200 * time.Millisecond)})
	select {
	case <-d.Fired():
	case <-time.After(5 * time.Second):
		t.Fatal("the deadline passed, and nothing is said")
	}
	if err := d.Why(); err == nil || !strings.Contains(err.Error(), "not confirmed in time") {
		t.Error(err)
	}
	d.Done()
}

// A watchdog that was started alone does nothing while its maker is there, and its work when it has left, or was
// killed.
func TestAloneItOutlivesItsMaker(t *testing.T) {
	t.Parallel()
	in, maker := io.Pipe()
	said, out := io.Pipe()
	tended := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		ended <- Outlive(t.Context(), in, out, func(context.Context) error {
			close(tended)
			return nil
		})
	}()
	lines := bufio.NewScanner(said)
	go io.WriteString(maker, "{\"alone\":true}\n")
	if lines.Scan(); lines.Text() != lineReady {
		t.Fatalf("it says %q", lines.Text())
	}
	io.WriteString(maker, lineAlive+"\n")
	select {
	case <-tended:
		t.Error("it began while its maker was there")
	case <-time.After(50 * time.Millisecond):
	}
	maker.Close()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	<-tended
	if err := Outlive(t.Context(), strings.NewReader("{"), io.Discard, nil); err == nil {
		t.Error("half an order is taken for one")
	}
}
