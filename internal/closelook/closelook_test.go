package closelook

import (
	"fmt"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/attribution"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/accounting"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/linux/tc"
)

// What processes did between two readings is told by name, children that ended included, and each once.
func TestOutsiders(t *testing.T) {
	did := func(parent int, started uint64, cpu time.Duration, read uint64) accounting.Process {
		return accounting.Process{Parent: parent, Started: started, CPU: cpu, ReadBytes: read, ReadCalls: 1000}
	}
	first := map[int]process{
		10: {did(1, 5, 10*time.Second, 0), "unit cron.service"},
		11: {did(10, 6, 3*time.Second, 1<<20), "unit cron.service"}, // ends; its parent waits for it
		12: {did(1, 7, 50*time.Second, 0), "idle (user root)"},
		13: {did(1, 8, time.Second, 0), "other (user a)"},   // its number is another's later
		16: {did(10, 9, time.Hour, 0), "unit cron.service"}, // is in a group later
	}
	last := map[int]process{
		10: {did(1, 5, 10*time.Second+5*time.Second, 1<<20), "unit cron.service"}, // 3 s of it were its child's before
		12: {did(1, 7, 50*time.Second, 0), "idle (user root)"},
		13: {did(1, 200, 4*time.Second, 0), "dd (user b)"},  // began meanwhile
		14: {did(1, 90, 9*time.Second, 0), "late (user c)"}, // began before, and was not seen
		15: {did(1, 150, 0, 8<<12), "reader (user backup)"}, // began meanwhile
	}
	mayRunOn := func(pid int) idset.Set { return idset.New(pid - 10) }
	got := outsiders(first, last, map[int]string{16: "db"}, 100, 2, mayRunOn)
	want := []attribution.Outsider{{Name: "dd (user b)", CPU: 2, CPUs: idset.New(3)},
		{Name: "unit cron.service", CPU: 1, CPUs: idset.New(0)},
		{Name: "reader (user backup)", IO: attribution.IO{ReadBytes: 4 << 12, Reads: 4}}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%+v, wanted %+v", got, want)
	}
}

func TestNames(t *testing.T) {
	user := func(id int) string { return fmt.Sprintf("u%d", id) }
	for _, tt := range []struct{ hierarchy, cgroup, want string }{
		{"name=systemd", "/system.slice/cron.service", "unit cron.service"},
		{"unified", "/system.slice/db.service/sub", "unit db.service"},
		{"unified", "/machine.slice/box.scope", "unit box.scope"},
		{"unified", "/user.slice/user-7.slice/session-3.scope", "gzip (user u7)"},
		{"unified", "/user.slice/user-7.slice/user@7.service/app.slice", "gzip (user u7)"},
		{"unified", "/init.scope", "gzip (user u7)"},
		{"unified", "/system.slice/_cpu.service", "unit cpu.service"},
		{"unified", `/system.slice/a\x2db.service`, `unit a\x2db.service`},
		{"unified", "/", "gzip (user u7)"},
	} {
		p := &procfs.Process{Comm: "gzip", UID: 7, Cgroups: map[string]string{tt.hierarchy: tt.cgroup}}
		if got := nameOf(p, user); got != tt.want {
			t.Errorf("%s is %q, not %q", tt.cgroup, got, tt.want)
		}
	}
	if got := nameOf(&procfs.Process{Comm: "kworker/0:1", Kernel: true}, user); got != "the kernel's own threads" {
		t.Errorf("a thread of the kernel is %q", got)
	}
}

// The wait of a connection is the time for which it was busy and its other end had room, as far as round trips were
// longer than the shortest to the same address.
func TestWaited(t *testing.T) {
	of := func(local string, sent uint64, busy, full, trip, least time.Duration) sockets.Sender {
		return sockets.Sender{Local: netip.MustParseAddrPort(local), Remote: netip.MustParseAddrPort("10.0.0.9:1"),
			Sent: sent, Busy: busy, PeerFull: full, RoundTrip: trip, Least: least}
	}
	const ms = time.Millisecond
	before := map[uint32]connection{
		1: {of("10.0.0.1:1", 1000, 0, 0, 10*ms, 9*ms), "db"},
		2: {of("10.0.0.1:2", 1000, 0, 0, ms, ms), "db"},
		5: {of("10.0.0.1:5", 1<<40, 0, 0, ms, ms), ""},
	}
	now := map[uint32]connection{
		1: {of("10.0.0.1:1", 5000, 1000*ms, 200*ms, 10*ms, 9*ms), "db"}, // waits 0.9 of 800 ms
		2: {of("10.0.0.1:2", 2000, 2000*ms, 2000*ms, 50*ms, ms), "db"},  // its other end is slow
		3: {of("10.0.0.1:3", 9000, 500*ms, 0, 2*ms, ms), "backup"},      // new
		5: {of("10.0.0.1:5", 1<<40, 0, 0, ms, ms), "backup"},            // it came into the group, and sent nothing
		6: {of("10.0.0.1:6", 1<<40, 0, 0, ms, ms), ""},                  // of no group
		4: {of("127.0.0.1:3", 9000, 500*ms, 0, 2*ms, ms), "backup"},     // loopback
	}
	got := sums(before, now, map[netip.Addr]string{netip.MustParseAddr("10.0.0.1"): "eth0"}, 2)
	for group, want := range map[string]attribution.Sent{"db": {Bytes: 2500, Waited: 0.36},
		"backup": {Bytes: 4500, Waited: 0.125}} {
		is := got[group]["eth0"]
		if is.Bytes != want.Bytes || math.Abs(is.Waited-want.Waited) > 1e-9 || len(got[group]) != 1 {
			t.Errorf("%s: %+v, wanted %+v", group, got[group], want)
		}
	}
}

// Of groups in another network namespace it is known that nobody looked there.
func TestElsewhere(t *testing.T) {
	dir := t.TempDir()
	for pid, space := range map[string]string{"self": "net:[1]", "7": "net:[1]", "8": "net:[2]"} {
		ns := filepath.Join(dir, "proc", pid, "ns")
		if err := os.MkdirAll(ns, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(space, filepath.Join(ns, "net")); err != nil {
			t.Fatal(err)
		}
	}
	w := &attribution.Window{Groups: []attribution.Group{{Name: "db"}, {Name: "box"}, {Name: "gone"}}}
	elsewhere(host.New(dir), w, map[int]string{7: "db", 8: "box", 9: "gone"})
	if w.Groups[0].Elsewhere || !w.Groups[1].Elsewhere || w.Groups[2].Elsewhere {
		t.Errorf("%+v", w.Groups)
	}
}

func TestQueues(t *testing.T) {
	q := &queues{links: []tc.Link{{Name: "eth0"}, {Name: "eth1"}}, waiting: make([]int, 2)}
	if len(q.did(1)) != 0 {
		t.Error("nothing was seen, and something is told")
	}
	q.see([]tc.Stats{{Bytes: 100}, {Bytes: 7}})
	q.see([]tc.Stats{{Bytes: 300, Backlog: 1}, {Bytes: 7}})
	got := q.did(2)
	if got["eth0"] != (attribution.Link{Bytes: 100, Queued: 0.5}) || got["eth1"] != (attribution.Link{}) {
		t.Errorf("%+v", got)
	}
}

// This machine is looked at, and a program that uses a CPU is among what runs outside.
func TestLook(t *testing.T) {
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	l := Begin(host.New("/"), nil, nil)
	time.Sleep(time.Second)
	w := &attribution.Window{}
	l.End(w)
	for _, o := range w.Outsiders {
		if strings.HasPrefix(o.Name, "sh (user ") || strings.HasPrefix(o.Name, "unit ") {
			if o.CPU > 0 {
				return
			}
		}
	}
	load, _ := os.ReadFile("/proc/loadavg")
	t.Errorf("a busy shell is not seen: %+v; load %s", w.Outsiders, load)
}
