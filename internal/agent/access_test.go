package agent

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/procfs"
)

// Whom the policy admits is not kept out by whom it does not, and nobody takes all connections.
func TestLimitListenerCounts(t *testing.T) {
	r := newLimitListener(nil, nil)
	enter := func(uid int, admitted bool) *conn {
		a, b := net.Pipe()
		t.Cleanup(func() { _ = a.Close(); _ = b.Close() })
		return r.count(a, api.Caller{Identity: procfs.Identity{UID: uid}}, admitted)
	}
	in := 0
	for uid := 1; uid <= 100; uid++ {
		for range 10 {
			if enter(uid, false) != nil {
				in++
			}
		}
	}
	if in != connsUnknown {
		t.Errorf("%d connections of users that nothing admits, want %d", in, connsUnknown)
	}
	var own []*conn
	for range connsOfUser + 5 {
		if c := enter(1000, true); c != nil {
			own = append(own, c)
		}
	}
	if len(own) != connsOfUser {
		t.Errorf("%d connections of one user, want %d", len(own), connsOfUser)
	}
	if own[0].connPeer.user != own[1].connPeer.user {
		t.Error("two connections of a user do not wait for each other")
	}
	_ = own[0].Close()
	_ = own[0].Close() // counts once
	if enter(1000, true) == nil || enter(1000, true) != nil {
		t.Error("a connection that was closed is not free again, or twice")
	}
}

// A user may ask for some changes at once, and then for one after the other.
func TestRateOfChanges(t *testing.T) {
	changes := newUserQuota().changes
	now := time.Now()
	take := func(at time.Time) bool { return changes.AllowN(at, 1) }
	for i := range changesAtOnce {
		if !take(now) {
			t.Fatalf("change %d is too many", i)
		}
	}
	if take(now) || take(now.Add(changeEvery/2)) {
		t.Error("one more is allowed at once")
	}
	if later := now.Add(3 * changeEvery / 2); !take(later) || take(later) {
		t.Error("not one more after a while")
	}
	later := now.Add(time.Hour)
	for range changesAtOnce {
		if !take(later) {
			t.Fatal("after an hour not as many as at first")
		}
	}
	if take(later) {
		t.Error("an hour counts for more than a full measure")
	}
}

// Who is at the other end is told by the kernel, with all Unix groups as of the connection.
func TestPeer(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	who, err := peer(in)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	if who.UID != os.Geteuid() || who.PID != os.Getpid() || len(who.Groups) != len(groups)+1 ||
		who.Groups[len(groups)] != os.Getegid() {
		t.Errorf("%+v; this process has uid %d, pid %d, groups %v and %d", who, os.Geteuid(), os.Getpid(), groups,
			os.Getegid())
	}
	if _, err := peer(c.(*net.UnixConn)); err != nil {
		t.Errorf("from the other side: %v", err)
	}
}
