package accounting_test

import (
	"os"
	"testing"
	"time"

	"bulkhead/internal/linux/accounting"
	"bulkhead/internal/linux/sysroot"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/proc/7", 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(dir+"/proc/7/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("stat", "7 (a) b) S 3 7 7 0 -1 4194560 100 200 3 4 5 6 7 8 20 0 1 0 100 1000 50\n")
	root := sysroot.New(dir)
	bare := accounting.Process{Parent: 3, Faults: 307, CPU: 260 * time.Millisecond, Started: 100}
	if a, err := accounting.Read(root, 7); err != nil || a != bare {
		t.Errorf("without io: %+v, %v", a, err)
	}
	write("io", "rchar: 9\nsyscr: 11\nsyscw: 12\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled: x\n")
	want := accounting.Process{Parent: 3, Faults: 307, CPU: 260 * time.Millisecond, Started: 100, ReadBytes: 4096,
		WrittenBytes: 8192, ReadCalls: 11, WriteCalls: 12}
	if a, err := accounting.Read(root, 7); err != nil || a != want {
		t.Errorf("it did %+v, %v, want %+v", a, err, want)
	}
	write("status", "Name:\ta\nCpus_allowed_list:\t0-1,3\n")
	if on := accounting.MayRunOn(root, 7); on.String() != "0-1,3" || accounting.MayRunOn(root, 8) != nil {
		t.Errorf("it may run on %s", on)
	}
	write("stat", "7 (a) S\n")
	if a, err := accounting.Read(root, 7); err == nil {
		t.Errorf("a short stat: %+v", a)
	}
	if _, err := accounting.Read(root, 8); err == nil {
		t.Error("a process that is not there has an activity")
	}
}
