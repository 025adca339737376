package procfs

import (
	"strings"

	"bulkhead/internal/linux/sysroot"
)

// Memory is what one process holds, from /proc/PID/status, in bytes.
type Memory struct {
	Anon, File, Shmem, Swap, Huge, Locked int64
}

// Memory returns what a process holds. Shmem counts what it has touched of memory shared with others
// (shared_buffers, an SGA), in full for every process that shares it. Kernels before 4.5 do not say
// what the resident pages are: smaps is summed up there, which takes time for a large process.
func (h FS) Memory(pid int) (Memory, error) {
	dir, err := h.OpenProc(pid)
	if err != nil {
		return Memory{}, err
	}
	defer dir.Close()
	text, err := dir.Read(nil, "status", sysroot.MaxPseudoFile)
	if err != nil {
		return Memory{}, dir.Failed(err)
	}
	s, err := parseStatus(text)
	if err != nil {
		return Memory{}, dir.Failed(err)
	}
	if s.hasRss || !s.hasMemory {
		return s.memory, nil
	}
	if text, err = dir.Read(nil, "smaps", sysroot.MaxPseudoFile); err != nil {
		return Memory{}, dir.Failed(err)
	}
	mapped, err := parseSmaps(text)
	if err != nil {
		return Memory{}, dir.Failed(err)
	}
	s.memory.Anon, s.memory.File, s.memory.Shmem = mapped.Anon, mapped.File, mapped.Shmem
	s.memory.Huge = mapped.Huge
	return s.memory, nil
}

// parseSmaps sums the resident memory of every mapping in /proc/PID/smaps by what lies behind it.
func parseSmaps(text []byte) (Memory, error) {
	var sum Memory
	var one mapping
	err := sysroot.Lines("smaps", text, func(line string) (err error) {
		name, value, found := strings.Cut(line, ":")
		if !found || strings.Contains(name, " ") { // "00400000-0040b000 r-xp 00000000 08:02 173521 /usr/sbin/mysqld"
			one.addTo(&sum)
			one = mapping{shared: isSharedMemory(line)}
			return nil
		}
		switch name {
		case "Size":
			one.size, err = ParseAmount(value)
		case "Rss":
			one.resident, err = ParseAmount(value)
		case "Anonymous":
			one.anonymous, err = ParseAmount(value)
		case "KernelPageSize":
			one.pageSize, err = ParseAmount(value)
		}
		return err
	})
	one.addTo(&sum)
	return sum, err
}

// mapping is one mapping of smaps, in bytes.
type mapping struct {
	size, resident, anonymous, pageSize int64
	shared                              bool // memory shared with others, no file
}

func (m mapping) addTo(sum *Memory) {
	const largestBasePage = 64 << 10
	switch {
	case m.pageSize > largestBasePage: // hugetlb pages are not resident in smaps; what is mapped is the best there is
		sum.Huge += m.size
	case m.shared:
		sum.Shmem += m.resident
	default: // a private mapping of a file holds pages of it and copies
		sum.Anon += m.anonymous
		sum.File += m.resident - m.anonymous
	}
}

func isSharedMemory(header string) bool {
	fields := strings.Fields(header)
	if len(fields) < 6 {
		return false
	}
	name := fields[5]
	return strings.HasPrefix(name, "/SYSV") || strings.HasPrefix(name, "/dev/zero") ||
		strings.HasPrefix(name, "/dev/shm/") || strings.HasPrefix(name, "/memfd:")
}
