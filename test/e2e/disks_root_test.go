//go:build root

package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/testhost"
)

// A limit on a filesystem over two disks is the sum of what the disks are given, not as much on each: written and read
// by a process inside, on a real btrfs over two loop devices, in a mount namespace of its own.
func TestLimitOverTwoDisks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
		t.Fatalf("%v (make deps installs it)", err)
	}
	const size, limit, amount = 256 << 20, 20 << 20, 100 << 20
	first, _ := testhost.LoopDevice(t, size)
	second, _ := testhost.LoopDevice(t, size)
	t.Cleanup(func() { _ = exec.Command("btrfs", "device", "scan", "--forget", first, second).Run() })
	data := filepath.Join(s.dir, "data")
	s.write(fmt.Sprintf("groups:\n  load:\n    match: [{cmdline: 'matches nothing at all here'}]\n    io: [{on: %s, "+
		"read: {bandwidth: 20MiB/s}, write: {bandwidth: 20MiB/s}}]\n", data))
	bulkhead := fmt.Sprintf("%s --policy %s --state %s --socket %s", s.program, s.policy, s.state, s.socket)
	script := fmt.Sprintf(`
mkdir %[1]s
mkfs.btrfs -q -f -d raid0 -m raid0 %[2]s %[3]s
mount -t btrfs -o device=%[2]s,device=%[3]s %[2]s %[1]s
%[4]s plan --long
%[4]s apply
%[4]s verify load || [ $? = 9 ] # no agent runs
%[4]s run load -- dd if=/dev/zero of=%[1]s/file bs=1M count=%[5]d oflag=direct
%[4]s run load -- dd if=%[1]s/file of=/dev/null bs=1M iflag=direct
%[4]s release --all`, data, first, second, bulkhead, amount>>20)
	cmd := exec.Command("sh", "-euc", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	said := strings.Join(strings.Fields(out.String()), " ")
	for _, dev := range []string{first, second} {
		name := strings.TrimPrefix(dev, "/dev/")
		for _, what := range []string{"read", "write"} {
			if want := "io." + what + ".bandwidth 10MiB/s (1/2 of 20MiB/s, on " + name + ")"; !strings.Contains(said,
				want) {
				t.Errorf("the plan does not say %q", want)
			}
		}
	}
	if !strings.Contains(said, "is on 2 devices, so its disks share the limit") {
		t.Error("the plan does not say why")
	}
	times := regexp.MustCompile(`copied, ([0-9.]+) s`).FindAllStringSubmatch(out.String(), -1)
	if len(times) != 2 {
		t.Fatalf("no two measurements in:\n%s", &out)
	}
	for i, what := range []string{"written", "read"} {
		seconds, err := strconv.ParseFloat(times[i][1], 64)
		if err != nil {
			t.Fatal(err)
		}
		rate := amount / seconds
		t.Logf("%s: %.1f MiB/s of %d", what, rate/(1<<20), limit>>20)
		// v1 lets through a slice's worth at the start; a machine at work elsewhere may be slower.
		if rate > limit*1.1 || rate < limit*0.5 {
			t.Errorf("%s at %.1f MiB/s, want %d", what, rate/(1<<20), limit>>20)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}
