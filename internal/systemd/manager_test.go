package systemd_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/systemdfake"
)

func connect(t *testing.T, m *systemdfake.Manager) *systemd.Manager {
	t.Helper()
	client, err := systemd.Connect(t.Context(), m.Options())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// wantError fails the test unless err is of the kind and tells a user what to do.
func wantError(t *testing.T, err, kind error) {
	t.Helper()
	switch {
	case !errors.Is(err, kind):
		t.Errorf("error %v is not %q", err, kind)
	case systemd.Hint(err) == "" || !strings.Contains(err.Error(), "hint: "):
		t.Errorf("error %q has no hint", err)
	}
}

func TestConnectWithoutSystemd(t *testing.T) {
	_, err := systemd.Connect(t.Context(), systemd.Options{Root: t.TempDir()})
	wantError(t, err, systemd.ErrNotRunning)

	root, err := os.MkdirTemp("", "sd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	if err := os.MkdirAll(filepath.Join(root, "run/systemd/system"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err = systemd.Connect(t.Context(), systemd.Options{Root: root}) // booted, and no socket
	wantError(t, err, systemd.ErrNotRunning)
}

// A socket that takes connections and says nothing, at any stage.
func TestConnectToSilence(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	m.Hang(true)
	o := m.Options()
	o.Timeout = 100 * time.Millisecond
	for _, o.Bus = range []bool{false, true} {
		start := time.Now()
		_, err := systemd.Connect(t.Context(), o)
		wantError(t, err, systemd.ErrNoAnswer)
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("it took %v to see that nobody answers", took)
		}
	}
}

// One that ends each connection at once.
func TestConnectToClosing(t *testing.T) {
	root, err := os.MkdirTemp("", "sd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	for _, dir := range []string{"run/systemd/system", "run/dbus"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, socket := range []string{"run/systemd/private", "run/dbus/system_bus_socket"} {
		l, err := net.Listen("unix", filepath.Join(root, socket))
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
	}
	_, err = systemd.Connect(t.Context(), systemd.Options{Root: root, Timeout: 2 * time.Second})
	if !errors.Is(err, systemd.ErrGone) {
		t.Errorf("error %v", err)
	}
}

func TestVersion(t *testing.T) {
	for text, want := range map[string]int{"252.39-1~deb12u1": 252, "247": 247, "219": 219} {
		if v := connect(t, systemdfake.New(t, systemdfake.Options{Version: text})).Version(); v.Number != want ||
			v.Text != text {
			t.Errorf("version %q is %+v", text, v)
		}
	}
}

// PID 1 stops answering while we are connected.
func TestCallTimesOut(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	o := m.Options()
	o.Timeout, o.JobTimeout = 100*time.Millisecond, 100*time.Millisecond
	client, err := systemd.Connect(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	m.Hang(true)
	_, err = client.Unit(t.Context(), "a.service")
	wantError(t, err, systemd.ErrNoAnswer)
	wantError(t, client.Start(t.Context(), "a.service"), systemd.ErrNoAnswer)
	wantError(t, client.Reload(t.Context()), systemd.ErrNoAnswer)
	wantError(t, client.SetProperties(t.Context(), "a.service", systemd.Runtime,
		systemd.Property{Name: "MemoryMax", Value: uint64(1 << 20)}), systemd.ErrNoAnswer)
	m.Hang(false)
	if _, err := client.Unit(t.Context(), "a.service"); err != nil {
		t.Errorf("after PID 1 answers again: %v", err)
	}
}

// A caller's own context ends a call too.
func TestCallIsCancelled(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	client := connect(t, m)
	m.Hang(true)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := client.Units(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// A daemon-reexec drops the connection; the next call makes a new one.
func TestConnectsAgain(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	client := connect(t, m)
	for range 3 {
		m.Drop()
		eventually(t, "a call works again", func() bool { _, err := client.Units(t.Context()); return err == nil })
	}
	m.Away(true)
	eventually(t, "calls fail while systemd is away",
		func() bool { _, err := client.Units(t.Context()); return err != nil })
	m.Away(false)
	eventually(t, "a call works again", func() bool { _, err := client.Units(t.Context()); return err == nil })
	client.Close()
	if _, err := client.Units(t.Context()); !errors.Is(err, systemd.ErrGone) {
		t.Errorf("after Close: %v", err)
	}
	eventually(t, "no connection is left", func() bool { return m.Clients() == 0 })
}

// The connection goes while a job is waited for.
func TestJobLosesItsConnection(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	client := connect(t, m)
	file := filepath.Join(m.Root(), "etc/systemd/system/slow.service")
	if err := os.WriteFile(file, []byte("[Service]\nType=notify\nTimeoutStartSec=60\nExecStart=/bin/sleep 1000\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- client.Start(t.Context(), "slow.service") }()
	watcher := connect(t, m)
	eventually(t, "the start is under way", func() bool {
		u, err := watcher.Unit(t.Context(), "slow.service")
		return err == nil && u.ActiveState == "activating"
	})
	m.Drop()
	if err := <-ended; !errors.Is(err, systemd.ErrGone) {
		t.Errorf("error %v", err)
	}
}

func TestRefusals(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{Version: "219"})
	client := connect(t, m)
	wantError(t, client.Attach(t.Context(), "a.service", "/sub", 1), systemd.ErrOld)
	for _, err := range []error{
		client.StartTransient(t.Context(), systemd.Transient{Name: "a.service"}),
		client.StartTransient(t.Context(), systemd.Transient{Name: "a.scope", PIDs: []int{0}}),
		client.StartTransient(t.Context(), systemd.Transient{Name: "a.service", Exec: []string{"sleep"}}),
		client.StartKeeper(t.Context(), systemd.Transient{Name: "a.service", Exec: []string{"/bin/sleep"}}),
		client.ChangeDropIns(t.Context(),
			systemd.DropIn{Unit: "a.service", Lines: []string{"Slice=x.slice\nUser=root"}}),
		client.ChangeDropIns(t.Context(), systemd.DropIn{Unit: "a.service", Lines: []string{"[Service]"}}),
		client.ChangeDropIns(t.Context(), systemd.DropIn{Unit: "../a.service"}),
		client.ChangeDropIns(t.Context(), systemd.DropIn{Unit: "a.target", Lines: []string{"X=1"}}),
		client.RestoreOverrides(t.Context(), "a.service", []systemd.Override{{Path: "/etc/passwd.conf"}}),
	} {
		if !errors.Is(err, systemd.ErrInvalid) {
			t.Errorf("error %v is not %q", err, systemd.ErrInvalid)
		}
	}
	for _, c := range m.Calls() {
		if strings.HasPrefix(c.Method, "Start") || c.Method == "Reload" {
			t.Errorf("%s was sent all the same", c.Method)
		}
	}
}

// A reload that fails puts every drop-in back.
func TestDropInsAllOrNone(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	client := connect(t, m)
	old := systemd.DropIn{Unit: "a.service", Lines: []string{"Slice=old.slice"}}
	if err := client.ChangeDropIns(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	before := tree(t, m.Root())
	foreign := filepath.Join(m.Root(), "etc/systemd/system/c.service.d/50-bulkhead.conf")
	changes := []systemd.DropIn{{Unit: "a.service", Lines: []string{"Slice=new.slice"}},
		{Unit: "b.service", Lines: []string{"Slice=new.slice"}}}

	m.Intercept(func(c systemdfake.Call) error {
		if c.Method == "Reload" {
			return errors.New("no")
		}
		return nil
	})
	if err := client.ChangeDropIns(t.Context(), changes...); err == nil {
		t.Error("no error")
	}
	m.Intercept(nil)
	if after := tree(t, m.Root()); after != before {
		t.Errorf("files are now\n%swere\n%s", after, before)
	}
	// A file of that name that somebody else wrote is neither written over nor taken away.
	if err := os.MkdirAll(filepath.Dir(foreign), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(foreign, []byte("[Service]\nNice=5\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	before = tree(t, m.Root())
	for _, lines := range [][]string{{"Slice=x.slice"}, nil} {
		err := client.ChangeDropIns(t.Context(), append(changes, systemd.DropIn{Unit: "c.service", Lines: lines})...)
		if err == nil || systemd.Hint(err) == "" {
			t.Errorf("error %v", err)
		}
	}
	if after := tree(t, m.Root()); after != before {
		t.Errorf("files are now\n%swere\n%s", after, before)
	}
	mine, err := client.DropIns()
	if err != nil || len(mine) != 1 || mine[0].Unit != "a.service" || mine[0].Lines[0] != "Slice=old.slice" {
		t.Errorf("drop-ins %v, %v", mine, err)
	}
	reloads := count(m, "Reload")
	if err := client.ChangeDropIns(t.Context(), old); err != nil || count(m, "Reload") != reloads {
		t.Errorf("what is so already was reloaded: %v", err)
	}
	if err := client.ChangeDropIns(t.Context(), systemd.DropIn{Unit: "a.service"}); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(m.Root(), "etc/systemd/system/a.service.d")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the empty directory is still there: %v", err)
	}
}

func count(m *systemdfake.Manager, method string) (n int) {
	for _, c := range m.Calls() {
		if c.Method == method {
			n++
		}
	}
	return n
}

// tree gives every file below a directory with its text.
func tree(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		b.WriteString(path + ": " + string(text) + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	limit := time.Now().Add(10 * time.Second)
	for !holds() {
		if time.Now().After(limit) {
			t.Fatalf("waited in vain until %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// What Stop's refusal keeps off: asked directly, systemd ends all that runs in a slice (measured on 252).
func TestStoppedSliceKills(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	client := connect(t, m)
	pid := m.Spawn()
	if err := client.StartTransient(t.Context(), systemd.Transient{Name: "a-b.slice"}); err != nil {
		t.Fatal(err)
	}
	if err := client.StartTransient(t.Context(), systemd.Transient{Name: "a-b-c.scope", Slice: "a-b.slice",
		PIDs: []int{pid}}); err != nil {
		t.Fatal(err)
	}
	wantError(t, client.Stop(t.Context(), "a.slice"), systemd.ErrBusy)
	if !m.Alive(pid) {
		t.Fatal("the refused stop ended the process")
	}
	conn, err := dbus.Dial("unix:path=" + filepath.Join(m.Root(), "run/systemd/private"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Auth([]dbus.Auth{dbus.AuthExternal("0")}); err != nil {
		t.Fatal(err)
	}
	manager := conn.Object("org.freedesktop.systemd1", "/org/freedesktop/systemd1")
	if err := manager.Call("org.freedesktop.systemd1.Manager.StopUnit", 0, "a.slice", "replace").Err; err != nil {
		t.Fatal(err)
	}
	eventually(t, "the process is gone with its slice", func() bool { return !m.Alive(pid) })
}

// A job that systemd says it is about is progress; a systemd that says nothing makes none.
func TestProgressOfAJob(t *testing.T) {
	for name, c := range map[string]struct {
		spoil    func(m *systemdfake.Manager)
		progress bool
	}{
		"a job that takes long": {func(*systemdfake.Manager) {}, true},
		"and no answer": {func(m *systemdfake.Manager) {
			m.Intercept(func(call systemdfake.Call) error {
				if call.Method == "GetJob" {
					m.Hang(true)
				}
				return nil
			})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := systemdfake.New(t, systemdfake.Options{})
			m.Stall("slow.slice", true)
			c.spoil(m)
			client, err := systemd.Connect(t.Context(), systemd.Options{Root: m.Root(), Timeout: 300 * time.Millisecond,
				JobTimeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			heard := 0
			err = client.StartTransient(systemd.WithProgress(t.Context(), func() { heard++ }),
				systemd.Transient{Name: "slow.slice"})
			if !errors.Is(err, systemd.ErrJob) {
				t.Errorf("the job: %v", err)
			}
			if (heard > 1) != c.progress {
				t.Errorf("progress was told %d times", heard)
			}
		})
	}
}

// A unit that waits for its start, as between the two halves of a restart, says so.
func TestQueuedUnit(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	m.Stall("slow.slice", true)
	client, err := systemd.Connect(t.Context(), systemd.Options{Root: m.Root(), Timeout: time.Minute,
		JobTimeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ended := make(chan error)
	go func() { ended <- client.StartTransient(t.Context(), systemd.Transient{Name: "slow.slice"}) }()
	queued := func() bool {
		u, err := client.Unit(t.Context(), "slow.slice")
		if err != nil {
			t.Error(err)
			return true
		}
		return u.Queued
	}
	eventually(t, "it is queued", queued)
	if err := <-ended; !errors.Is(err, systemd.ErrJob) {
		t.Errorf("the job: %v", err)
	}
	if queued() {
		t.Error("the job is cancelled, and the unit still queued")
	}
}

// A daemon-reload that takes long is progress: on a large host it may take longer than a watchdog waits.
func TestProgressOfAReload(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	client, err := systemd.Connect(t.Context(), systemd.Options{Root: m.Root(), Timeout: time.Minute,
		JobTimeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	m.Hang(true)
	heard := 0
	if err := client.Reload(systemd.WithProgress(t.Context(), func() { heard++ })); !errors.Is(err,
		systemd.ErrNoAnswer) {
		t.Errorf("the reload: %v", err)
	}
	if heard == 0 {
		t.Error("no progress was told")
	}
}

func TestGoingDown(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	client := connect(t, m)
	for _, want := range []bool{false, true} {
		if down, err := client.GoingDown(t.Context()); err != nil || down != want {
			t.Errorf("going down: %v, %v; want %v", down, err, want)
		}
		m.GoDown()
	}
}

// After a question that found the connection cut the next one goes over a new connection, always.
func TestQuestionAfterACut(t *testing.T) {
	m := systemdfake.New(t, systemdfake.Options{})
	client := connect(t, m)
	for range 200 {
		m.Drop()
		if err := client.Ping(t.Context()); err == nil {
			continue // it was noticed before
		}
		if err := client.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}
