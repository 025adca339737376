//go:build root

package control

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/testhost"
)

// hugePool has so many pages of 2 MiB more for as long as the test takes.
func hugePool(t *testing.T, more int) {
	t.Helper()
	const file = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	read := func() int {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Skipf("this kernel has no huge pages of 2 MiB: %v", err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := read()
	set := func(n int) error { return os.WriteFile(file, []byte(strconv.Itoa(n)), 0o600) }
	t.Cleanup(func() {
		if err := set(before); err != nil {
			t.Error(err)
		}
	})
	if err := set(before + more); err != nil {
		t.Fatal(err)
	}
	if got := read(); got < before+more {
		t.Skipf("this host has no memory for %d huge pages: it gave %d", more, got-before)
	}
}

// A process that asks for more huge pages than its group may have is refused, with room for it in the pool, and lives;
// up to the limit it gets and may touch them. Before Linux 5.7 it would end by SIGBUS.
func TestHugePagesBeyondTheLimitAreRefused(t *testing.T) {
	s := newSite(t)
	if facts := s.facts0(); !facts.Kernel.Since("5.7") {
		t.Skip("needs Linux 5.7")
	} else if h, ok := facts.HierarchyOf("hugetlb"); !ok || h.ReadOnly {
		t.Skip("the controller hugetlb is not mounted here")
	}
	hugePool(t, 8)
	dir := t.TempDir()
	start, out := filepath.Join(dir, "start"), filepath.Join(dir, "out")
	// mmap(2) of so many MiB of private memory in huge pages, whose first byte of each page is touched.
	const ask = `for (6, 4) { my $at = syscall(9, 0, $_ << 20, 3, 0x40022, -1, 0);
		if ($at == -1) { print "$_ MiB refused: $!\n"; next }
		for my $page (0 .. $_ / 2 - 1) {
			open my $zero, "<", "/dev/zero"; # read(2) to there
			syscall(0, fileno($zero), $at + ($page << 21), 1) == 1 or die "page $page: $!"
		}
		print "$_ MiB given and touched\n" }`
	one := testhost.Spawn(t, "sh", "-c", `while [ ! -e "$1" ]; do sleep 0.05; done; exec perl -e "$3" >"$2" 2>&1`,
		"huge-asker", start, out, ask)
	s.apply("groups:\n  jobs: {role: helper, match: [{cmdline: huge-asker}], memory: {huge: {2MiB: 4MiB}}}\n")
	if at := s.where("hugetlb", one); !strings.HasSuffix(at, "/jobs") {
		t.Fatalf("the process is in %s", at)
	}
	if err := os.WriteFile(start, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const want = "6 MiB refused: Cannot allocate memory\n4 MiB given and touched\n"
	var text []byte
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end) && string(text) != want; {
		time.Sleep(50 * time.Millisecond)
		text, _ = os.ReadFile(out) // until it is there
	}
	if string(text) != want {
		t.Errorf("it says %q, want %q", text, want)
	}
}
