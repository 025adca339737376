// Package accounting reads what the kernel counts of a process: CPU time, page faults, and what it read and wrote. It
// keeps nothing.
package accounting

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"bulkhead/internal/linux/idset"
	"bulkhead/internal/linux/sysroot"
)

// Process is what a process did so far: its threads, those that ended too, and those of its children for which it
// waited.
type Process struct {
	Parent  int
	Faults  uint64        // page faults
	CPU     time.Duration // user and system time, in steps of 10 ms
	Started uint64        // hundredths of a second from the boot to its start
	// ReadBytes are those that it had read from disks, and WrittenBytes those that it wrote, also into page cache that
	// the kernel writes to a disk later. ReadCalls and WriteCalls are system calls, also such for what is no disk. They
	// are 0 where the kernel does not count them (CONFIG_TASK_IO_ACCOUNTING) or does not let us read them: that is
	// root's.
	ReadBytes, WrittenBytes, ReadCalls, WriteCalls uint64
}

// tick is the unit in which stat tells CPU time: USER_HZ is 100 on all architectures that Go has.
const tick = 10 * time.Millisecond

// Read reads stat (fields 4, 10 to 17, and 22) and io of a process (proc(5)). Errors of one that is gone:
// sysroot.IsGone.
func Read(root *sysroot.FS, pid int) (p Process, err error) {
	dir := "/proc/" + strconv.Itoa(pid)
	text, err := root.ReadFile(dir + "/stat")
	if err != nil {
		return p, err
	}
	last := 0
	for number, word := range sysroot.StatFields(text) {
		n, _ := strconv.ParseUint(string(word), 10, 64) // a word that is no number counts nothing
		switch {
		case number == 4:
			p.Parent = int(n)
		case number >= 10 && number <= 13:
			p.Faults += n
		case number >= 14 && number <= 17:
			p.CPU += time.Duration(n) * tick
		case number == 22:
			p.Started = n
		}
		last = number
	}
	if last < 22 {
		return p, fmt.Errorf("parse %s/stat: it is too short", dir)
	}
	if text, err = root.ReadFile(dir + "/io"); err == nil {
		p.parseIO(text)
	}
	return p, nil
}

// parseIO reads proc_pid_io(5).
func (p *Process) parseIO(text []byte) {
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(bytes.TrimSpace(line), []byte(": "))
		n, err := strconv.ParseUint(string(value), 10, 64)
		if err != nil {
			continue
		}
		switch string(name) {
		case "read_bytes":
			p.ReadBytes = n
		case "write_bytes":
			p.WrittenBytes = n
		case "syscr":
			p.ReadCalls = n
		case "syscw":
			p.WriteCalls = n
		}
	}
}

// MayRunOn are the CPUs on which a process may run (Cpus_allowed_list of proc_pid_status(5)); nil where that is not
// known.
func MayRunOn(root *sysroot.FS, pid int) idset.Set {
	text, err := root.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(text) {
		if list, is := bytes.CutPrefix(line, []byte("Cpus_allowed_list:")); is {
			ids, _ := idset.Parse(string(bytes.TrimSpace(list))) // one that cannot be read restricts nothing
			return ids
		}
	}
	return nil
}

// Now is the time in which Started is told: hundredths of a second since the boot, suspended ones too.
func Now() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return uint64(now.Nano() / 10_000_000)
}
