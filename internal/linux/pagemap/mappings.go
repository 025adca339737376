package pagemap

import (
	"fmt"
	"strings"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// Mapping is what /proc/PID/smaps (proc_pid_smaps(5)) says of one mapping. Amounts are bytes.
type Mapping struct {
	Start uint64
	// Object is the same for all mappings of one shared object, "device:inode"; "" for anonymous memory.
	Object string
	File   string // what lies behind, "" for anonymous memory
	Shared bool   // changes are seen by others that map the same
	Size   int64
	// PageSize is that of the kernel for this mapping: more than the usual one for pages of a pool, such as of
	// hugetlbfs. Transparent huge pages do not show in it.
	PageSize int64
	// Resident is what is in memory, and Proportional this with each page divided by the number of processes that map
	// it. Both are 0 for pages of a pool.
	Resident, Proportional int64
	Anonymous              int64 // of Resident: belongs to no file
	Transparent            int64 // of Resident: in transparent huge pages, anonymous and shared
	// Swap is what is swapped out, divided by the number of processes that have it (kernel 4.3: SwapPss). Of an object
	// that processes share it is all that this mapping has of it, undivided: SwapPss has nothing of these (kernel 4.5,
	// Documentation/filesystems/proc.rst).
	Swap int64
	Pool int64 // touched pages of a pool
}

// IsMemory says that the mapping is memory, and no program, library or other file.
func (m Mapping) IsMemory() bool {
	return m.File == "" || strings.HasPrefix(m.File, "[") || isMemory(m.File)
}

// Mappings reads /proc/PID/smaps. The kernel walks the page tables of the process for it: of a process of hundreds of
// GiB that takes seconds, in which it may wait. Errors: ErrExited.
func Mappings(h procfs.FS, pid int) ([]Mapping, error) {
	return read(h, pid, "smaps", func(_ procfs.Dir, text []byte) ([]Mapping, error) { return parseSmaps(text) })
}

// Ranges reads /proc/PID/maps, which walks no page tables: of each mapping where it begins, its object, file and size.
// What lies in pages of a pool without a name has the file PoolFile. Errors: ErrExited.
func Ranges(h procfs.FS, pid int) ([]Mapping, error) {
	return read(h, pid, "maps", func(_ procfs.Dir, text []byte) (all []Mapping, err error) {
		err = sysroot.Lines("maps", text, func(line string) error {
			m, err := parseHeader(line)
			all = append(all, m)
			return err
		})
		return all, err
	})
}

// PoolFile is the name in maps of anonymous memory in pages of a pool, such as of mmap(2) with MAP_HUGETLB.
const PoolFile = "/anon_hugepage (deleted)"

func parseSmaps(text []byte) ([]Mapping, error) {
	var all []Mapping
	err := sysroot.Lines("smaps", text, func(line string) error {
		name, value, found := strings.Cut(line, ":")
		if !found || strings.Contains(name, " ") {
			m, err := parseHeader(line)
			all = append(all, m)
			return err
		}
		if len(all) == 0 {
			return fmt.Errorf("%q belongs to no mapping", name)
		}
		m := &all[len(all)-1]
		var into *int64
		switch name {
		case "Size":
			into = &m.Size
		case "KernelPageSize":
			into = &m.PageSize
		case "Rss":
			into = &m.Resident
		case "Pss":
			into = &m.Proportional
		case "Anonymous":
			into = &m.Anonymous
		case "AnonHugePages", "ShmemPmdMapped":
			into = &m.Transparent
		case "Swap", "SwapPss":
			into = &m.Swap
		case "Shared_Hugetlb", "Private_Hugetlb":
			into = &m.Pool
		default:
			return nil // flags, and what newer kernels add
		}
		n, err := procfs.ParseAmount(value)
		if err != nil {
			return err
		}
		switch name {
		case "AnonHugePages", "ShmemPmdMapped", "Shared_Hugetlb", "Private_Hugetlb":
			*into += n
		case "SwapPss": // behind Swap
			if !m.Shared || m.Object == "" {
				*into = n
			}
		default:
			*into = n
		}
		return nil
	})
	return all, err
}

// parseHeader parses the first line of a mapping:
//
//	00400000-0040b000 r-xp 00000000 08:02 173521 /usr/sbin/mysqld
func parseHeader(line string) (Mapping, error) {
	from, to, err := parseAddresses(line)
	if err != nil {
		return Mapping{}, err
	}
	const before = 5 // addresses, permissions, offset, device, inode
	fields := strings.Fields(line)
	m := Mapping{Start: from, Size: int64(to - from)}
	if len(fields) < before {
		return m, fmt.Errorf("%q is no head of a mapping", line)
	}
	m.Shared = strings.HasSuffix(fields[1], "s")
	if fields[4] != "0" {
		m.Object = fields[3] + ":" + fields[4]
	}
	if len(fields) > before {
		m.File = strings.Join(fields[before:], " ")
	}
	return m, nil
}
