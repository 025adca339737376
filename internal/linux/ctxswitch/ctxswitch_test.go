package ctxswitch

import (
	"encoding/binary"
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/sysroot"
)

func TestParseStatus(t *testing.T) {
	c, ended, err := parseStatus([]byte("Name:\tmysqld\nState:\tS (sleeping)\nvoluntary_ctxt_switches:\t150\n" +
		"nonvoluntary_ctxt_switches:\t545\n"))
	if err != nil || ended || c != (Count{150, 545}) {
		t.Errorf("%+v, %v, %v", c, ended, err)
	}
	if _, ended, err := parseStatus([]byte("State:\tZ (zombie)\nvoluntary_ctxt_switches:\t1\n" +
		"nonvoluntary_ctxt_switches:\t2\n")); err != nil || !ended {
		t.Errorf("a zombie: %v, %v", ended, err)
	}
	if _, _, err := parseStatus([]byte("State:\tS (sleeping)\nvoluntary_ctxt_switches:\t1\n")); err == nil {
		t.Error("one count is missing")
	}
}

// What a thread does grows, and one that is not there is gone.
func TestReadThread(t *testing.T) {
	root := sysroot.New("/")
	runtime.LockOSThread()
	tid := unix.Gettid()
	before, lives, err := ReadThread(root, tid, Thread{})
	if err != nil || !lives || before.Ran == 0 {
		t.Fatalf("of a thread that runs: %+v, %v, %v", before, lives, err)
	}
	time.Sleep(time.Millisecond)
	for begun := time.Now(); time.Since(begun) < time.Millisecond; {
	}
	if err := unix.Nanosleep(&unix.Timespec{Nsec: 1000}, nil); err != nil {
		t.Fatal(err)
	}
	after, _, err := ReadThread(root, tid, before)
	if err != nil || after.Ran <= before.Ran || after.Voluntary <= before.Voluntary || after.Waited < before.Waited {
		t.Errorf("a moment later: %+v after %+v: %v", after, before, err)
	}
	if _, lives, err := ReadThread(root, 1<<30, Thread{}); lives || !sysroot.IsGone(err) {
		t.Errorf("of a thread that is not there: %v, %v", lives, err)
	}
}

// The status of a thread that was not on a CPU since it was read last is not read again.
func TestReadThreadThatSlept(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/proc/7", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/proc/7/schedstat", []byte("5 6 7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	root := sysroot.New(dir)
	before := Thread{Count: Count{1, 2}, Ran: 5, Waited: 6}
	if one, lives, err := ReadThread(root, 7, before); one != before || !lives || err != nil {
		t.Errorf("it slept: %+v, %v, %v", one, lives, err)
	}
	before.Ran = 4
	if one, _, err := ReadThread(root, 7, before); !sysroot.IsGone(err) {
		t.Errorf("it ran, and has no status: %+v, %v", one, err)
	}
}

// The CPU of a thread is its own, not that of its process.
func TestReadThreadCPU(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/proc/7/task/7", 0o755); err != nil {
		t.Fatal(err)
	}
	stat := "7 (a) b) S 1 7 7 0 -1 4194560 100 200 3 400 5 6 7 8 20 0 1 0 100 1000 50 18446744073709551615 1 1 0 0 " +
		"0 0 0 0 0 0 0 0 17 3 0 0 0 0 0\n"
	for name, text := range map[string]string{"schedstat": "5 6 7\n", "task/7/stat": stat,
		"status": "State:\tS (sleeping)\nvoluntary_ctxt_switches:\t1\nnonvoluntary_ctxt_switches:\t2\n"} {
		if err := os.WriteFile(dir+"/proc/7/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := Thread{Count: Count{1, 2}, Ran: 5, Waited: 6, CPU: 3}
	if one, lives, err := ReadThread(sysroot.New(dir), 7, Thread{}); one != want || !lives || err != nil {
		t.Errorf("it did %+v, %v, %v, want %+v", one, lives, err, want)
	}
}

// A thread's end says of which process it was from version 12 on; a short one is passed over.
func TestParseStats(t *testing.T) {
	var s unix.Taskstats
	b := make([]byte, unsafe.Sizeof(s))
	binary.NativeEndian.PutUint32(b[unsafe.Offsetof(s.Ac_pid):], 101)
	binary.NativeEndian.PutUint32(b[unsafe.Offsetof(s.Ac_tgid):], 100)
	binary.NativeEndian.PutUint64(b[unsafe.Offsetof(s.Nvcsw):], 7)
	binary.NativeEndian.PutUint64(b[unsafe.Offsetof(s.Nivcsw):], 3)
	copy(b[unsafe.Offsetof(s.Ac_comm):], "mysqld\x00")
	for version, pid := range map[uint16]int{8: 0, 12: 100, 17: 100} {
		binary.NativeEndian.PutUint16(b, version)
		want := Exit{TID: 101, PID: pid, Name: "mysqld", Count: Count{8, 3}}
		if x, ok := parseStats(b); !ok || x != want {
			t.Errorf("version %d: %+v, %v", version, x, ok)
		}
	}
	if _, ok := parseStats(b[:100]); ok {
		t.Error("a short one was taken")
	}
}
