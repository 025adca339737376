//go:build lab

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// spares is how many empty disks of 512 MiB come after the payload's: the guest partitions one, puts one under LVM and
// joins two to a mirror; two are left to tests.
const spares = 6

// hardware is the same for nearly every mode. No more CPU features than the tests need: each, protection against
// speculation above all, costs time in emulation, as does a clock that is not the CPU's own.
func (m Mode) hardware() []string {
	nodes, mib, cpu := 2, 1024, "Nehalem"
	if m.Nodes > 0 {
		nodes, mib, cpu = m.Nodes, 2048, "Nehalem,+pdpe1gb"
	}
	args := []string{"-accel", "tcg,thread=multi", "-cpu", cpu, "-smp", "4", "-m", strconv.Itoa(nodes * mib),
		"-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio"}
	for n, each := 0, 4/nodes; n < nodes; n++ {
		args = append(args, "-object", fmt.Sprintf("memory-backend-ram,id=m%d,size=%dM", n, mib),
			"-numa", fmt.Sprintf("node,nodeid=%d,cpus=%d-%d,memdev=m%d", n, n*each, (n+1)*each-1, n))
	}
	return args
}

// plainCopies takes X86_FEATURE_REP_GOOD from the CPU: the kernel then clears and copies pages by plain stores. With
// "rep stos", emulated machines stood still in clear_page_rep for up to 70 s (a soft lockup of Debian's 6.1, seen in
// its traces), and booted half again as slowly.
const plainCopies = "clearcpuid=112"

// append is the kernel's command line.
func (m Mode) append() string {
	words := append([]string{
		"console=ttyS0", "quiet", "loglevel=1", "panic=-1", "root=/dev/vda", "rw",
		"mitigations=off", plainCopies, "tsc=reliable", "clocksource=tsc", "lab.mode=" + m.Name,
	}, slices.Concat(m.Kernel(), m.Words)...)
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		words = append(words, ticks(string(text))...)
	}
	if !m.Systemd {
		words = append(words, "init=/sbin/lab-init")
	}
	if *shell {
		words = append(words, "lab.shell=1")
	}
	if quick() {
		words = append(words, "lab.quick=1")
	}
	if *long {
		words = append(words, "lab.long=1")
	}
	return strings.Join(words, " ")
}

// ticks says how fast the CPU's counter runs, which an emulated machine reads from this one. The guest's kernel
// measures it when it boots, and beside other work it measured a third of it: its clock then ran three times too fast,
// and every limit of time in it was a third (seen on 27 November 2026). Known where this is a virtual machine itself;
// on others /proc/cpuinfo tells what the CPU runs at now. Kernels before 5.11 do not read it.
func ticks(cpuinfo string) []string {
	_, rest, _ := strings.Cut(cpuinfo, "\ncpu MHz")
	line, _, _ := strings.Cut(rest, "\n")
	mhz, err := strconv.ParseFloat(strings.Trim(line, "\t: "), 64)
	if err != nil || !slices.Contains(strings.Fields(cpuinfo), "hypervisor") {
		return nil
	}
	return []string{fmt.Sprintf("tsc_early_khz=%.0f", mhz*1000)}
}

// silence is how long a machine's console may say nothing in a short run. A test that hangs is ended before that by the
// timeout of its package, which guest sets, so this is a machine that hangs.
const silence = 16 * time.Minute

// boot runs a machine until it powers itself off and gives what its console said, which the file log shows on the way.
// One that falls silent or gets stuck is killed and started anew, twice at most: emulated machines lock up now and
// then, and what is known to do so is kept from them (see steady in guest).
func boot(t *testing.T, m Mode, img image, payload, log string) []byte {
	t.Helper()
	console, silent := bootOnce(t, m, img, payload, log)
	for again := 0; silent && again < 2; again++ {
		t.Logf("the machine was stuck, or silent for %v, and is started anew; it ended with\n%s", silence,
			tail(console))
		console, silent = bootOnce(t, m, img, payload, log)
	}
	if silent {
		t.Errorf("the machine was stuck, or silent for %v, three times", silence)
	}
	return console
}

// bootOnce says in the end whether the machine was killed because it was silent.
func bootOnce(t *testing.T, m Mode, img image, payload, log string) ([]byte, bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), *limit)
	defer cancel()
	var heard Ear
	var silent atomic.Bool
	if !*shell && !*long {
		go heard.Listen(ctx, silence, func() { silent.Store(true); cancel() })
	}
	args := append(m.hardware(), "-kernel", img.kernel, "-initrd", img.initrd, "-append", m.append())
	drive := func(file, serial string) { // a serial number, as real disks have
		args = append(args, "-drive", "file="+file+",format=raw,if=none,snapshot=on,id="+serial,
			"-device", "virtio-blk-pci,drive="+serial+",serial="+serial)
	}
	drive(img.root, "lab-root")
	drive(payload, "lab-payload")
	work := t.TempDir()
	for i := range spares {
		file := filepath.Join(work, fmt.Sprintf("spare%d.img", i))
		must(t, os.WriteFile(file, nil, 0o600))
		must(t, os.Truncate(file, 512<<20))
		drive(file, fmt.Sprintf("lab-spare%d", i))
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	// The machine does not outlive a driver that is killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := os.Remove(log); err != nil &&
		!errors.Is(err, os.ErrNotExist) { // another run of this mode may be writing there
		t.Error(err)
	}
	live, err := os.Create(log)
	must(t, err)
	defer live.Close()
	var console, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&console, live, &heard), &complaints
	if quick() {
		cmd.Stdout = io.MultiWriter(&console, live, &heard, os.Stdout)
	}
	if *shell {
		cmd.Stdin, cmd.Stdout = os.Stdin, io.MultiWriter(os.Stdout, live)
	}
	t.Logf("the machine's console: %s", log)
	start := time.Now()
	err = cmd.Run()
	load, _ := os.ReadFile("/proc/loadavg") // emulation on a busy host cannot load a device up to its limit
	used := time.Duration(0)
	if cmd.ProcessState != nil {
		used = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	t.Logf("the machine ran for %v and used %v of this host's CPUs, whose load average is now %s",
		time.Since(start).Round(time.Second), used.Round(time.Second), strings.TrimSpace(string(load)))
	switch {
	case silent.Load():
	case ctx.Err() != nil:
		t.Errorf("the machine was not done after %v and was killed", *limit)
	case err != nil:
		t.Errorf("run the machine: %v\n%s", err, complaints.Bytes())
	}
	return console.Bytes(), silent.Load()
}
