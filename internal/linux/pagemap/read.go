package pagemap

import (
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// read reads a file of a process, which parse takes apart.
func read[T any](h procfs.FS, pid int, file string, parse func(procfs.Dir, []byte) ([]T, error)) ([]T, error) {
	dir, err := h.OpenProc(pid)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var all []T
	text, err := dir.Read(nil, file, sysroot.MaxPseudoFile)
	if err == nil {
		all, err = parse(dir, text)
	}
	if err != nil {
		return nil, dir.Failed(err)
	}
	return all, nil
}
