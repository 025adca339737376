// Package footprint makes the resident set of this process smaller.
package footprint

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Shrink unmaps the pages of the program's file (madvise(2), MADV_DONTNEED): a start touches nearly all of them. Those
// that are used again are mapped again out of the kernel's cache, which keeps the others until memory is short. Only
// mappings that cannot be written to are meant, and none of which a page was written before that: it would be lost.
func Shrink() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer f.Close()
	var from, to uintptr // of the mapping that lines are of; 0 of one that is not meant
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		var first, end uintptr
		var access string
		switch n, _ := fmt.Sscanf(line, "%x-%x %s", &first, &end, &access); {
		case n == 3 && strings.HasSuffix(line, " "+program) && strings.HasPrefix(access, "r-"):
			from, to = first, end
		case n == 3:
			from, to = 0, 0
		case to > from && strings.Join(strings.Fields(line), " ") == "Anonymous: 0 kB":
			if _, _, no := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); no != 0 {
				return os.NewSyscallError("madvise", no)
			}
		}
	}
	return lines.Err()
}
