package pagesize

import (
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
)

// Page tables are those of a server and of its children.
func TestTables(t *testing.T) {
	h := host.New(linuxtest.Unpack(t, `
-- proc/7/task/7/children --
8 9 
-- proc/7/status --
VmPTE:	     100 kB
-- proc/8/status --
VmPTE:	      60 kB
-- proc/9/status --
VmPTE:	      40 kB
`))
	if tables, err := Tables(h, 7); err != nil || tables != 200<<10 {
		t.Errorf("%d bytes of page tables, %v", tables, err)
	}
	if _, err := Tables(h, 6); err == nil {
		t.Error("page tables of nobody are told")
	}
}

// The page size of a server is proved by its maps, and what is in other pages is told.
func TestProve(t *testing.T) {
	const usual = `7f0000000000-7f0008000000 rw-p 00000000 00:00 0 
Size:             131072 kB
KernelPageSize:        4 kB
Rss:              120000 kB
AnonHugePages:         0 kB
`
	pool := strings.NewReplacer("00:00 0 ", "00:0f 7 /anon_hugepage (deleted)", "    4 kB", " 2048 kB",
		"120000", "     0").Replace(usual)
	thp := strings.Replace(usual, "AnonHugePages:         0", "AnonHugePages:    102400", 1)
	const program = "00400000-00500000 r-xp 00000000 08:02 173521 /usr/sbin/db\nSize: 1024 kB\nKernelPageSize: 4 kB\n"
	for name, tt := range map[string]struct {
		smaps       string
		size, least int64
		want        string
	}{
		"usual":             {usual, Usual, 100 << 20, "KernelPageSize 4 kB, no huge page"},
		"pool":              {usual + pool, 2 << 20, 100 << 20, "128 MiB mapped, KernelPageSize 2048 kB"},
		"transparent":       {thp, Transparent, 100 << 20, "100 of 117 MiB in transparent huge pages"},
		"no pool":           {usual, 2 << 20, 100 << 20, "0 MiB are in pages of 2048 KiB, not 100"},
		"too little":        {pool, 2 << 20, 200 << 20, "128 MiB are in pages of 2048 KiB, not 200"},
		"another pool":      {usual + pool, Usual, 100 << 20, "128 MiB are in pages of 2048 KiB"},
		"pool, transparent": {usual + pool, Transparent, 0, "128 MiB are in pages of 2048 KiB"},
		"switched on":       {thp, Usual, 100 << 20, "something switched them on again"},
		"switched off":      {usual, Transparent, 100 << 20, "0 KiB are in transparent huge pages"},
		"program":           {program, Usual, 1 << 20, "0 MiB are in pages of 4 KiB"},
	} {
		h := host.New(linuxtest.Unpack(t, "-- proc/7/smaps --\n"+tt.smaps))
		seen, err := Prove(h, 7, tt.size, tt.least)
		if err != nil {
			seen = err.Error()
		}
		if holds := name == "usual" || name == "pool" || name == "transparent"; holds != (err == nil) ||
			!strings.Contains(seen, tt.want) {
			t.Errorf("%s: %s, want %s", name, seen, tt.want)
		}
	}
}
