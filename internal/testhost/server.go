package testhost

import (
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Program finds an executable by glob patterns; without it the test fails and names Debian's package.
func Program(t testing.TB, pkg string, patterns ...string) string {
	t.Helper()
	for _, p := range patterns {
		if found, _ := filepath.Glob(p); len(found) > 0 {
			return found[len(found)-1]
		}
	}
	t.Fatalf("none of %s is here: install the package %s", strings.Join(patterns, ", "), pkg)
	return ""
}

// AccountDir makes a directory for a server that runs as an ordinary account, which the package brings. It goes with
// the test.
func AccountDir(t testing.TB, account, pkg string) (dir string, u *user.User, as *syscall.Credential) {
	t.Helper()
	RequireRoot(t)
	u, err := user.Lookup(account)
	if err != nil {
		t.Fatalf("find account %q: %v: install the package %s", account, err, pkg)
	}
	if dir, err = os.MkdirTemp("", "bulkhead-server-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the server's directory: %v", err)
		}
	})
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	return dir, u, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// handed are the ports that FreePort gave: who asked for one may not listen yet.
var handed sync.Map

// FreePort is a TCP port of the loopback address that nobody listens on now, another one each time.
func FreePort(t testing.TB) int {
	t.Helper()
	for {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		_ = l.Close() // it served to find the port
		if _, known := handed.LoadOrStore(port, true); !known {
			return port
		}
	}
}
