package live_test

import (
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/live"
)

func self(t *testing.T, h *host.Host) procfs.ID {
	t.Helper()
	procs, err := h.Proc.Processes(procfs.Options{PIDs: []int{os.Getpid()}})
	if err != nil || len(procs) != 1 {
		t.Fatal(procs, err)
	}
	return procs[0].ID
}

// The CPU time of a process that works is told, that of another one with its number is not.
func TestCores(t *testing.T) {
	h := host.New("/")
	us := self(t, h)
	other := procfs.ID{PID: us.PID, Start: us.Start + 1}
	var ended atomic.Bool
	defer ended.Store(true)
	go func() {
		for !ended.Load() {
			continue
		}
	}()
	for late := time.Now().Add(time.Minute); ; {
		look := live.New(h, nil)
		cores := look.Cores([]procfs.ID{us, other}, 50*time.Millisecond)
		if _, known := cores[other]; known {
			t.Fatalf("a process that is not there uses %v", cores)
		}
		if cores[us] > 0 {
			if again := look.Cores([]procfs.ID{us}, 50*time.Millisecond); again[us] != cores[us] {
				t.Errorf("watched again: %v, then %v", cores, again)
			}
			return
		}
		if time.Now().After(late) {
			t.Fatal("a process that works uses no CPU")
		}
	}
}

// Who is connected to an instance is its client, unless it belongs to one.
func TestClients(t *testing.T) {
	h := host.New("/")
	us := self(t, h)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	connection, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	accepted, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	for name, tt := range map[string]struct {
		instance engine.Instance
		is       bool
	}{
		"to its port":        {engine.Instance{Engine: engine.MySQL, Port: port}, true},
		"to another port":    {engine.Instance{Engine: engine.MySQL, Ports: []int{1, port}}, true},
		"to nothing of it":   {engine.Instance{Engine: engine.MySQL, Port: 1}, false},
		"as a part of it":    {engine.Instance{Port: port, Members: []engine.Member{{ID: us}}}, false},
		"as a helper of it":  {engine.Instance{Port: port, Helpers: []engine.Helper{{ID: us}}}, false},
		"to one without any": {engine.Instance{}, false},
	} {
		found := live.New(h, []engine.Instance{tt.instance}).Clients([]procfs.ID{us})
		if got, is := found[us]; is != tt.is || is && got != tt.instance.String() {
			t.Errorf("connected %s: %v", name, found)
		}
	}
}
