// Package family tells what a process and its children did: which children there are, and their page faults. It reads
// what costs nothing, keeps nothing, and its functions may be called concurrently. Errors match procfs.ErrExited where
// the process has ended.
package family

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// Children are the children of a process that its main thread started. It needs a kernel with CONFIG_PROC_CHILDREN.
func Children(h procfs.FS, pid int) (pids []int, err error) {
	dir, err := h.OpenProc(pid)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	text, err := dir.Read(nil, path.Join("task", strconv.Itoa(pid), "children"), sysroot.MaxPseudoFile)
	if err != nil {
		return nil, dir.Failed(err)
	}
	for field := range strings.FieldsSeq(string(text)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			return nil, dir.Failed(err)
		}
		pids = append(pids, child)
	}
	return pids, nil
}

// Faults counts page faults of a process and of its children that ended and that it has waited for: minor ones, and
// major ones, which read from a disk.
func Faults(h procfs.FS, pid int) (minor, major int64, err error) {
	dir, err := h.OpenProc(pid)
	if err != nil {
		return 0, 0, err
	}
	defer dir.Close()
	text, err := dir.Read(nil, "stat", sysroot.MaxPseudoFile)
	if err != nil {
		return 0, 0, dir.Failed(err)
	}
	// The name in parentheses may hold anything. minflt cminflt majflt cmajflt are fields 10 to 13 (proc_pid_stat(5)).
	const first, afterName = 10, 3
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < first+4-afterName {
		return 0, 0, dir.Failed(fmt.Errorf("stat has %d fields behind the name", len(fields)))
	}
	var counts [4]int64
	for i := range counts {
		if counts[i], err = strconv.ParseInt(fields[first-afterName+i], 10, 64); err != nil {
			return 0, 0, dir.Failed(err)
		}
	}
	return counts[0] + counts[1], counts[2] + counts[3], nil
}
