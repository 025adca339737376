//go:build root

package apparmor

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/linux/sysroot"
)

const loading = "/sys/kernel/security/apparmor/"

// profile is testdata/profile.txt, as apparmor_parser 3.0.8 compiles it.
func profile(t *testing.T) []byte {
	t.Helper()
	f, err := os.Open("testdata/profile.bin.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// write writes a file of the kernel in one go.
func write(file string, data []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// The kernel says of a loaded profile what it then allows and denies, and logs, a thread that it confines.
func TestLoadedProfile(t *testing.T) {
	h := Host{sysroot.New("/")}
	if on, err := h.Enabled(); err != nil || !on {
		t.Skipf("AppArmor is not on here (%v); machines of the lab have it", err)
	}
	if err := write(loading+".replace", profile(t)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := write(loading+".remove", []byte("bulkhead-test")); err != nil {
			t.Error(err)
		}
	})
	for _, c := range []struct {
		path string
		want string
	}{{"/bulkhead-test/a", "[]"}, {"/bulkhead-test/b/c d", "[]"}, {"/etc/passwd", "[w k]"},
		{"/bulkhead-test/secret", "[r w]"}, {"/etc/hostname", "[r w k]"}} {
		got, err := h.Missing("bulkhead-test", c.path, Read, Write, Lock)
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%s lacks %v, %v; want %s", c.path, got, err, c.want)
		}
	}
	if got, err := h.Missing("no-such-profile", "/etc/passwd", Read); err == nil {
		t.Errorf("a profile that is not loaded lacks %v", got)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread goes with the goroutine
		done <- confinedThread(h)
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	text, err := KernelLog()
	if err != nil {
		t.Fatal(err)
	}
	all, _, err := ReadDenials(strings.NewReader(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range all {
		if d.Profile == "bulkhead-test" && d.Name == "/etc/hostname" && d.Denied == "r" && d.Operation == "open" &&
			!d.Allowed {
			return
		}
	}
	t.Errorf("the log of the kernel has no denial of /etc/hostname: %+v", all)
}

// confinedThread changes into the profile and opens files.
func confinedThread(h Host) error {
	const attr = "/proc/thread-self/attr/"
	file := attr + "apparmor/current"
	if _, err := os.Stat(file); errors.Is(err, os.ErrNotExist) {
		file = attr + "current"
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString("changeprofile bulkhead-test"); err != nil {
		return err
	}
	if c, err := h.Of(syscall.Gettid()); err == nil && c != (Confinement{"bulkhead-test", "enforce"}) {
		return fmt.Errorf("it is confined by %+v", c)
	}
	p, err := os.Open("/etc/passwd")
	if err != nil {
		return fmt.Errorf("what the profile allows: %w", err)
	}
	p.Close()
	if p, err := os.Open("/etc/hostname"); !errors.Is(err, syscall.EACCES) {
		if err == nil {
			p.Close()
		}
		return fmt.Errorf("what the profile denies: %w", err)
	}
	return nil
}
