//go:build root

package e2e

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// The state directory is on a disk whose writes and syncs fail (EIO): a loop device on a file that can grow no more.
// Verbs say so, none hangs, `release --all` leaves nothing in force, and is recorded once the disk works again.
func TestStateOnAFailingDisk(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	policy := "groups:\n  load:\n    match: [{cmdline: 'matches nothing at all here'}]\n    tasks: %d\n"
	s.write(fmt.Sprintf(policy, 50))
	bulkhead := fmt.Sprintf("timeout 60 %s --policy %s --socket %s --state %s/disk/state", s.program, s.policy,
		s.socket,
		s.dir)
	script := fmt.Sprintf(`
cd %[1]s
mkdir small disk
mount -t tmpfs -o size=16m none small
truncate -s 64M small/image
device=$(losetup -f --show small/image)
trap 'umount disk; losetup -d $device; umount small' EXIT
mkfs.ext4 -q $device
mount -o errors=continue $device disk
groups() { ls -d /sys/fs/cgroup/*/%[4]s/load /sys/fs/cgroup/%[4]s/load 2>/dev/null | wc -l; }
%[2]s apply
echo "made $(groups)"
sync
dd if=/dev/zero of=small/fill bs=64k 2>/dev/null || true
ended() { status=0; "$@" || status=$?; echo "ended $status"; }
sed -i 's/tasks: 50/tasks: 40/' %[3]s
ended %[2]s apply
ended %[2]s status
ended %[2]s verify
ended %[2]s release --all
echo "left $(groups)"
rm small/fill
ended %[2]s release --all
ended %[2]s status
`, s.dir, bulkhead, s.policy, s.root)
	cmd := exec.Command("sh", "-euc", script)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	text := out.String()
	if strings.Contains(text, "ended 124") || strings.Contains(text, "panic") {
		t.Errorf("a verb hung or fell over")
	}
	if !strings.Contains(text, "input/output error") && !strings.Contains(text, "no space left on device") {
		t.Errorf("the disk did not fail")
	}
	if strings.Contains(text, "made 0\n") || !strings.Contains(text, "left 0\n") {
		t.Errorf("limits are still in force after the release")
	}
	_, after, _ := strings.Cut(text, "left 0\n")
	if !strings.HasPrefix(strings.TrimPrefix(after[strings.Index(after, "ended"):], "ended "), "0\n") {
		t.Errorf("the release is not recorded once the disk works again")
	}
	if !strings.Contains(after, "RELEASED") {
		t.Errorf("status does not say that everything is released")
	}
	if t.Failed() {
		t.Log(text)
	}
}
