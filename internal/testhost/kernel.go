package testhost

import (
	"os"
	"strings"
	"testing"

	"bulkhead/internal/host"
)

// Since says whether the kernel is of a version at least.
func Since(t testing.TB, major, minor int) bool {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	v, err := host.ParseVersion(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return v.AtLeast(major, minor)
}

// CountsByBPF says whether the kernel itself shows that BPF programs can count: a test that finds that they do not is
// skipped only where it does not.
func CountsByBPF(t testing.TB) bool {
	t.Helper()
	_, noBTF := os.Stat("/sys/kernel/btf/vmlinux")
	lockdown, _ := os.ReadFile("/sys/kernel/security/lockdown") // where it cannot be read, nothing is locked down
	return Since(t, 5, 5) && noBTF == nil && !strings.Contains(string(lockdown), "[confidentiality]")
}
