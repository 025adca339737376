package sockets_test

import (
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/sockets"
)

func TestListenersOfFixture(t *testing.T) {
	got, err := hosttest.Load(t, "debian12").Sockets.Listeners([]int{900, 2001, 77777})
	want := map[int][]sockets.Listener{
		900: {
			{Network: "tcp", Address: "127.0.0.1:5432", Port: 5432},
			{Network: "tcp", Address: "[::1]:5432", Port: 5432},
			{Network: "unix", Address: "/var/run/postgresql/.s.PGSQL.5432"},
		},
		2001: {{Network: "tcp", Address: "0.0.0.0:3306", Port: 3306}}, // of a network namespace of its own
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v\nwant %v", got, err, want)
	}
}

func TestListenersOfThisProcess(t *testing.T) {
	dir, err := os.MkdirTemp("", "sock") // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	var want []sockets.Listener
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Logf("listen on %s: %v", address, err) // a host without IPv6
			continue
		}
		defer l.Close()
		want = append(want, sockets.Listener{Network: "tcp", Address: l.Addr().String(),
			Port: l.Addr().(*net.TCPAddr).Port})
	}
	socket := filepath.Join(dir, "a b.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want = append(want, sockets.Listener{Network: "unix", Address: socket})
	all, err := host.New("/").Sockets.Listeners([]int{os.Getpid()})
	if err != nil {
		t.Fatal(err)
	}
	got := all[os.Getpid()]
	for _, l := range want {
		if !slices.Contains(got, l) {
			t.Errorf("%+v is not among %+v", l, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
