//go:build root

package sepolicy_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/testhost"
)

// A directory that is mounted below a tree is no part of it, also where it is on the same file system.
func TestLabelsStayOnMount(t *testing.T) {
	testhost.RequireRoot(t)
	p := newPolicy(t)
	p.Put("srv/other/f", "")
	p.Put("srv/db/m/g", "")
	at := filepath.Join(p.dir, "srv/db/m")
	must(t, unix.Mount(filepath.Join(p.dir, "srv/other"), at, "", unix.MS_BIND, ""))
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	l := sepolicy.Labels{Host: p.host()}
	must(t, l.Write(t.Context(), "/srv/db", "mysqld_db_t"))
	if label, set := p.Labels[p.inode(t, "srv/other/f")]; set {
		t.Errorf("what is mounted has %s", label)
	}
	mounted, err := l.Each(t.Context(), "/srv/db", func(sepolicy.File) error { return nil })
	if err != nil || !slices.Equal(mounted, []string{"/srv/db/m"}) {
		t.Errorf("mounted is %q, %v", mounted, err)
	}
	if err := os.Remove(at); err == nil {
		t.Error("nothing was mounted")
	}
}
