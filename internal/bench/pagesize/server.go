package pagesize

import (
	"context"
	"fmt"
	"slices"

	"bulkhead/internal/advise/gather/hugepages"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/family"
	"bulkhead/internal/linux/pagemap"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/memory"
)

// Prove reads the maps of a server and says of which size the pages of its memory are, at least so many bytes of it.
// Other pages are an error: of the usual size or of a pool no transparent ones, of [Transparent] none of a pool.
// Amounts are bytes.
func Prove(h *host.Host, pid int, size, least int64) (evidence string, err error) {
	all, err := pagemap.Mappings(h.Proc, pid)
	if err != nil {
		return "", err
	}
	mapped := map[int64]int64{} // by page size
	var resident, transparent int64
	for _, m := range all {
		if m.IsMemory() {
			mapped[m.PageSize] += m.Size
			resident, transparent = resident+m.Resident, transparent+m.Transparent
		}
	}
	of := fmt.Sprintf("smaps of process %d: ", pid)
	for page, bytes := range mapped {
		if page > Usual && page != size {
			return "", fmt.Errorf("%s%d MiB are in pages of %d KiB", of, bytes>>20, page>>10)
		}
	}
	switch {
	case size == Transparent && transparent < least:
		return "", fmt.Errorf("%s%d KiB are in transparent huge pages, not %d", of, transparent>>10, least>>10)
	case size == Transparent:
		return fmt.Sprintf("%s%d of %d MiB in transparent huge pages", of, transparent>>20, resident>>20), nil
	case transparent > 0:
		return "", fmt.Errorf("%s%d KiB are in transparent huge pages: something switched them on again", of,
			transparent>>10)
	case mapped[size] < least:
		return "", fmt.Errorf("%s%d MiB are in pages of %d KiB, not %d", of, mapped[size]>>20, size>>10, least>>20)
	}
	if size == Usual { // how much is mapped says little: a MariaDB reserves addresses for 8 TiB
		return of + "KernelPageSize 4 kB, no huge page", nil
	}
	return fmt.Sprintf("%s%d MiB mapped, KernelPageSize %d kB", of, mapped[size]>>20, size>>10), nil
}

// Need is how many pages of the pool of the default size a MariaDB or a MySQL takes that runs, as `bulkhead memory`
// says it, with 1 % more.
func Need(ctx context.Context, h *host.Host, pid int) (int64, error) {
	facts, err := h.Facts()
	if err != nil {
		return 0, err
	}
	all, err := recognise.OfHost(h)
	if err != nil {
		return 0, err
	}
	at := slices.IndexFunc(all, func(i engine.Instance) bool { return i.Main.PID == pid })
	if at < 0 {
		return 0, fmt.Errorf("process %d is not seen to be a database", pid)
	}
	s, err := memory.SettingsOf(ctx, h, all[at], nil)
	if err != nil {
		return 0, err
	}
	n := hugepages.Of(h, facts, all[at], s)
	if n.Unknown != "" {
		return 0, fmt.Errorf("how many huge pages %s takes is not known: %s", n.Instance, n.Unknown)
	}
	const percent = 100
	return n.Pages + n.Pages/percent, nil
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
