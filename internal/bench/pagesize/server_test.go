package pagesize

import (
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
