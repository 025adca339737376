package auditlog_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/selinux/auditlog"
	"bulkhead/internal/selinux/avc"
)

func denied(second int, name string) string {
	return fmt.Sprintf("type=AVC msg=audit(%d.000:%d): avc:  denied  { read } for  pid=7 comm=\"mysqld\" name=%q "+
		"scontext=system_u:system_r:mysqld_t:s0 tcontext=system_u:object_r:tmp_t:s0 tclass=file permissive=0\n", second,
		second, name)
}

// What is added is given once, a line that is not whole when it is, and over a rotation and a cut, nothing is lost or
// given twice.
func TestFollow(t *testing.T) {
	dir := linuxtest.Unpack(t, "-- etc/audit/auditd.conf --\nlog_file = /srv/audit/log\n")
	at := filepath.Join(dir, "srv/audit/log")
	add := func(text string) {
		t.Helper()
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		f, open := os.OpenFile(at, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err := errors.Join(err, open); err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString(text)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	rotate := func() {
		t.Helper()
		if err := os.Rename(at, at+".1"); err != nil {
			t.Fatal(err)
		}
	}
	f := &auditlog.Follower{Root: sysroot.New(dir), Since: time.Unix(100, 0)}
	defer f.Close()
	gives := func(want string) {
		t.Helper()
		all, err := f.Next(time.Now())
		got := ""
		for _, d := range all {
			got += d.Name
		}
		if err != nil || got != want {
			t.Errorf("it gives %q, want %q: %v", got, want, err)
		}
	}
	if _, err := f.Next(time.Now()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a log: %v", err)
	}
	add(denied(99, "x") + denied(100, "a"))
	rotate()
	add(denied(101, "b"))
	gives("ab")
	gives("")
	whole := denied(102, "c")
	add(whole[:60])
	gives("")
	add(whole[60:])
	gives("c")
	add(denied(103, "d"))
	rotate()
	gives("d")
	add(denied(104, "e"))
	gives("e")
	add(denied(105, "f"))
	rotate()
	add(denied(106, "g"))
	gives("fg")
	if err := os.Truncate(at, 0); err != nil {
		t.Fatal(err)
	}
	add(denied(107, "h")[:40])
	gives("")
	add(denied(107, "h")[40:])
	gives("h")
	f.Close()
	gives("efh") // what is there; the cut took g
}

// A log may be larger than the memory that a process of ours should take, and may have no lines.
func TestFollowLarge(t *testing.T) {
	const size = 256 << 20
	dir := linuxtest.Unpack(t, "-- var/log/audit/audit.log --\n"+denied(99, "old")+denied(100, "a"))
	f, err := os.OpenFile(filepath.Join(dir, auditlog.Usual), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteAt([]byte("\n"+denied(101, "b")), size) // a hole before it
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	defer debug.SetGCPercent(debug.SetGCPercent(100)) // as in the program, whatever GOGC the tests have
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	follower := &auditlog.Follower{Root: sysroot.New(dir), Since: time.Unix(100, 0)}
	defer follower.Close()
	all, err := follower.Next(time.Now())
	runtime.ReadMemStats(&after)
	if err != nil || len(all) != 2 || all[0].Name != "a" || all[1].Name != "b" {
		t.Errorf("%+v, %v", all, err)
	}
	if took := int64(after.HeapSys) - int64(before.HeapSys); took > size/4 { // less where the heap shrank
		t.Errorf("it took %d MiB for %d MiB", took>>20, size>>20)
	}
}

// The logs of auditd are read from the oldest to the newest, where its configuration puts them.
func TestRead(t *testing.T) {
	root := sysroot.New(linuxtest.Unpack(t, `
-- etc/audit/auditd.conf --
log_format = ENRICHED
log_file = /srv/audit/log
-- srv/audit/log --
type=MAC_POLICY_LOAD msg=audit(3.0:3): auid=0
-- srv/audit/log.1 --
type=MAC_POLICY_LOAD msg=audit(2.0:2): auid=0
-- srv/audit/log.2 --
type=MAC_POLICY_LOAD msg=audit(1.0:1): auid=0
`))
	log := &avc.Log{}
	names, err := auditlog.Read(root, log, time.Time{})
	if err != nil || strings.Join(names, " ") != "/srv/audit/log.2 /srv/audit/log.1 /srv/audit/log" {
		t.Fatalf("%v, %v", names, err)
	}
	for i, when := range log.Loads {
		if when.Unix() != int64(i+1) {
			t.Errorf("the records are in the order %v", log.Loads)
		}
	}
	names, err = auditlog.Files(sysroot.New(t.TempDir()))
	if err != nil || len(names) != 1 || names[0] != auditlog.Usual {
		t.Errorf("without a word: %q, %v", names, err)
	}
	if _, err := auditlog.Read(sysroot.New(t.TempDir()), log, time.Time{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no auditd: %v", err)
	}
}
