package neighbour

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

func TestHogEnds(t *testing.T) {
	for _, kind := range HogKinds() {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			start := time.Now()
			if err := Hog(t.Context(), kind,
				HogOptions{For: 200 * time.Millisecond, Bytes: 8 << 20, Rate: 16 << 20, Dir: dir,
					Buffered: true}); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took < 200*time.Millisecond || took > 5*time.Second {
				t.Errorf("it took %v, asked for 200 ms", took)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("it left %v behind (%v)", left, err)
			}
		})
	}
}

func TestHogCancelled(t *testing.T) {
	for _, kind := range HogKinds() {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		start := time.Now()
		if err := Hog(ctx, kind, HogOptions{For: time.Minute, Bytes: 8 << 20, Dir: t.TempDir(),
			Buffered: true}); err != nil {
			t.Errorf("%s hog: %v", kind, err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("%s hog ended %v after it was cancelled", kind, took)
		}
		cancel()
	}
}

func TestHogPrograms(t *testing.T) {
	children := func() (n int) {
		all, err := host.New("/").Proc.Processes(procfs.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range all {
			if sid, err := getsid(p.PID); err == nil && p.PPID == os.Getpid() && p.State != 'Z' && sid == p.PID {
				n++
			}
		}
		return n
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- Hog(ctx, "cpu", HogOptions{For: time.Minute, Programs: 3}) }()
	for end := time.Now().Add(5 * time.Second); children() != 3; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d programs run in sessions of their own, want 3", children())
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n := children(); n != 0 {
		t.Errorf("%d programs are left", n)
	}
}

func TestHogUnknown(t *testing.T) {
	err := Hog(t.Context(), "network", HogOptions{})
	if err == nil || !strings.Contains(err.Error(), "cpu, memory, disk") {
		t.Errorf("error is %v, want the kinds there are", err)
	}
}

func TestHogDiskNoDirectory(t *testing.T) {
	err := Hog(t.Context(), "disk", HogOptions{Dir: filepath.Join(t.TempDir(), "none")})
	if err == nil || !strings.Contains(err.Error(), "start disk hog") {
		t.Errorf("error is %v", err)
	}
}

// The disk hog keeps its rate, so that it cannot wear a disk out, and reuses its file.
func TestHogDiskRate(t *testing.T) {
	var before, after syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &before); err != nil {
		t.Fatal(err)
	}
	if err := Hog(t.Context(), "disk", HogOptions{For: time.Second, Bytes: 2 << 20, Rate: 16 << 20, Dir: t.TempDir(),
		Buffered: true}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &after); err != nil {
		t.Fatal(err)
	}
	// Blocks of 512 bytes that were dirtied. The file system may count a page that is overwritten once.
	if written := (after.Oublock - before.Oublock) * 512; written > 20<<20 {
		t.Errorf("wrote %d bytes in a second, asked for 16 MiB/s", written)
	}
}

func TestHogDiskFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data")
	if err := PrepareFile(path, 4<<20); err != nil {
		t.Fatal(err)
	}
	if err := Hog(t.Context(), "disk", HogOptions{For: 100 * time.Millisecond, File: path,
		Buffered: true}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil || len(text) != 4<<20 {
		t.Fatalf("the file has %d bytes, %v: want the 4 MiB it had", len(text), err)
	}
	if text[1] == 0 || text[3<<20+1] == 0 {
		t.Error("the file was not overwritten")
	}
	if err := os.Truncate(path, 1000); err != nil {
		t.Fatal(err)
	}
	if err := Hog(t.Context(), "disk", HogOptions{File: path, Buffered: true}); err == nil {
		t.Error("a file smaller than a block was taken")
	}
}

func getsid(pid int) (int, error) {
	sid, _, errno := syscall.Syscall(syscall.SYS_GETSID, uintptr(pid), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(sid), nil
}

// The test binary serves as a hog that hogPrograms starts: it is enough to be there.
func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "bench" && os.Args[2] == "hog" {
		time.Sleep(time.Minute)
		return
	}
	os.Exit(m.Run())
}
