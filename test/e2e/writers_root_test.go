//go:build root

package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/testhost"
)

// A limit on writing holds on cgroup v1 what a process hands to the disk itself, however it does so, and not what the
// kernel writes for it: what docs/policy.md says, measured.
func TestWhoseWritesAreHeld(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, h := range testhost.Hierarchies(t) {
		if h.Version == 2 && slices.Contains(h.Controllers, "blkio") {
			t.Skip("cgroup v2 holds both: TestBufferedWritesAreHeldOnV2Alone")
		}
	}
	const limit, amount = 20 << 20, 32 << 20
	dev, _ := testhost.LoopDevice(t, 512<<20)
	data := filepath.Join(s.dir, "data")
	s.write(fmt.Sprintf("groups:\n  load:\n    match: [{cmdline: 'matches nothing at all here'}]\n"+
		"    io: [{on: %s, write: {bandwidth: %dMiB/s}}]\n", data, limit>>20))
	bulkhead := fmt.Sprintf("%s --policy %s --state %s --socket %s", s.program, s.policy, s.state, s.socket)
	fio := fmt.Sprintf("fio --name=w --rw=write --bs=1M --size=%d --directory=%s ", amount, data)
	writers := []struct {
		name, command string
		held          bool
	}{
		{"direct", fio + "--direct=1", true},
		{"O_DSYNC", fio + "--sync=dsync", true},
		{"fsync", fio + "--end_fsync=1", true},
		{"sync_file_range", fio + "--sync_file_range=wait_before,write,wait_after:1", true},
		{"msync", fio + "--ioengine=mmap --fsync=8", true},
		{"flusher", fmt.Sprintf("sh -c 'dd if=/dev/zero of=%[1]s/f bs=1M count=%[2]d; sync -f %[1]s/f'", data,
			amount>>20), false},
	}
	var b strings.Builder
	fmt.Fprintf(&b, "mkdir %[1]s\nmkfs.ext4 -q %[2]s\nmount %[2]s %[1]s\n%[3]s apply\n", data, dev, bulkhead)
	for _, w := range writers {
		fmt.Fprintf(&b, "sync -f %[1]s; a=$(date +%%s%%N); %[2]s run load -- %[3]s >/dev/null 2>&1; b=$(date "+
			"+%%s%%N)\n"+
			"echo took $((b - a)); rm -f %[1]s/w.* %[1]s/f\n", data, bulkhead, w.command)
	}
	fmt.Fprintf(&b, "%s release --all\n", bulkhead)
	cmd := exec.Command("sh", "-euc", b.String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	took := regexp.MustCompile(`took (\d+)`).FindAllStringSubmatch(out.String(), -1)
	if len(took) != len(writers) {
		t.Fatalf("%d writers measured of %d:\n%s", len(took), len(writers), &out)
	}
	for i, w := range writers {
		ns, err := strconv.ParseFloat(took[i][1], 64)
		if err != nil {
			t.Fatal(err)
		}
		rate := amount / (ns / 1e9)
		t.Logf("%s: %.1f MiB/s of %d", w.name, rate/(1<<20), limit>>20)
		// v1 lets through a slice's worth at the start. What is not held must only be faster than a limit would allow.
		if held := rate <= 1.15*limit; held != w.held {
			t.Errorf("%s: %.1f MiB/s under a limit of %d: held is %v, want %v", w.name, rate/(1<<20), limit>>20, held,
				w.held)
		}
	}
}
