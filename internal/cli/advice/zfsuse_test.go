package advice

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/advise/gather/zfsdata"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/linux/zfs"
)

// What is not known of a pool is said so, and what log and cache devices would bring has its figures.
func TestPrintUses(t *testing.T) {
	var out bytes.Buffer
	printed := func(l *zfsdata.Layout) string {
		out.Reset()
		printUses(render.Printable(&out, 0), l)
		return out.String()
	}
	if text := printed(&zfsdata.Layout{}); text != "" {
		t.Errorf("of nothing it prints %q", text)
	}
	text := printed(&zfsdata.Layout{Uses: map[string]zfsdata.Use{
		"tank": {Synced: &zfs.Synced{PerSecond: 120.25, Disks: 5000, Log: 70, Since: 90 * time.Minute},
			Wait: 4200 * time.Microsecond}, "old": {}},
		Lookups: &zfs.Lookups{Hits: 900, Misses: 100, Ghosts: 45, DeviceBytes: 1 << 30, DeviceHits: 1,
			DeviceMisses: 99}})
	for _, want := range []string{"old   not known", "120.2/s over 1h30m0s  4.2ms", "5000", "70",
		"did not answer: 10.0 %", "a short time before: 45.0 %", "hold 1 GiB, and had of what was looked for: 1.0 %"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	text = printed(&zfsdata.Layout{Lookups: &zfs.Lookups{}})
	if !strings.Contains(text, "did not answer: none") || strings.Contains(text, "Cache devices hold") {
		t.Errorf("of a cache that nobody asked:\n%s", text)
	}
}
