package pagemap

import (
	"errors"
	"io/fs"
	"strings"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// Object is memory that processes share, such as of mmap(2) with MAP_SHARED, memfd_create(2) or shmget(2).
type Object struct {
	Name  string // "device:inode": the same for all processes that map it
	Bytes int64  // that it has, in memory or swapped out, whoever touched them
	Pool  bool   // in pages of a pool
}

// Objects gives each shared memory object that a process maps, once, in the order of addresses. It reads
// /proc/PID/maps and asks for the size of each object by /proc/PID/map_files: no page tables are walked. It takes
// CAP_SYS_ADMIN (from kernel 5.9 CAP_CHECKPOINT_RESTORE does, too), else the error matches fs.ErrPermission. Other
// errors: ErrExited; fs.ErrNotExist on a captured host and for a kernel without map_files.
func Objects(h procfs.FS, pid int) ([]Object, error) { return read(h, pid, "maps", objectsOf) }

func objectsOf(dir procfs.Dir, text []byte) (all []Object, err error) {
	seen := map[string]bool{}
	err = sysroot.Lines("maps", text, func(line string) error {
		m, err := parseHeader(line)
		if err != nil || !m.Shared || m.Object == "" || !isMemory(m.File) || seen[m.Object] {
			return err
		}
		o := Object{Name: m.Object}
		addresses, _, _ := strings.Cut(line, " ")
		o.Bytes, o.Pool, err = dir.Allocated("map_files/" + withoutZeros(addresses))
		if errors.Is(err, fs.ErrNotExist) && dir.Alive() && dir.Has("map_files") {
			return nil // it was unmapped meanwhile
		}
		seen[m.Object] = true
		all = append(all, o)
		return err
	})
	return all, err
}

// withoutZeros writes a range of addresses of maps as map_files has it: maps fills up to 8 digits.
func withoutZeros(addresses string) string {
	from, to, _ := strings.Cut(addresses, "-")
	return strings.TrimLeft(from, "0") + "-" + strings.TrimLeft(to, "0")
}
