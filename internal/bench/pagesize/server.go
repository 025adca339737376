package pagesize

import (
	"fmt"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/family"
	"bulkhead/internal/linux/pagemap"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/memory"
)

// Prove reads the maps of a PostgreSQL and says of which size the pages of its shared memory are; other pages than
// wanted are an error. Sizes are bytes.
func Prove(h *host.Host, pid int, size int64) (evidence string, err error) {
	all, err := pagemap.Mappings(h.Proc, pid)
	if err != nil {
		return "", err
	}
	var shared pagemap.Mapping
	for _, m := range all {
		unnamed := m.File == pagemap.PoolFile || strings.HasPrefix(m.File, "/dev/zero")
		if m.Shared && unnamed && m.Size > shared.Size {
			shared = m
		}
	}
	switch {
	case shared.Size == 0:
		return "", fmt.Errorf("the maps of process %d show no shared memory without a name", pid)
	case shared.PageSize != size:
		return "", fmt.Errorf("the shared memory of process %d is in pages of %d KiB, not of %d KiB", pid,
			shared.PageSize>>10, size>>10)
	case shared.Transparent > 0:
		return "", fmt.Errorf("%d KiB of the shared memory of process %d are in transparent huge pages: something "+
			"switched them on again", shared.Transparent>>10, pid)
	}
	return fmt.Sprintf("smaps of process %d: %d MiB shared, KernelPageSize %d kB", pid, shared.Size>>20, size>>10), nil
}

// Tables is what the page tables of a server take: of its main process and of the children of that. Bytes.
func Tables(h *host.Host, pid int) (int64, error) {
	pids, err := family.Children(h.Proc, pid)
	if err != nil {
		return 0, err
	}
	inst := engine.Instance{Main: procfs.ID{PID: pid}}
	for _, pid := range append(pids, pid) {
		inst.Members = append(inst.Members, engine.Member{ID: procfs.ID{PID: pid}})
	}
	s, err := memory.Summarize(h, &host.Facts{}, "", inst)
	return s.PageTables, err
}
