package disks

import (
	"strings"
	"testing"

	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
)

// A limit on writing that commits wait for is named once, and so is one that does not hold what is on ZFS.
func TestNotesOn(t *testing.T) {
	limited := []policy.Setting{{Key: policy.KeyIOWriteBandwidth, On: "/dev/vdc", Dev: "254:32"},
		{Key: policy.KeyIOWriteIOPS, On: "/dev/vdc", Dev: "254:32"}}
	disk := &blockdev.Layer{Kind: blockdev.Filesystem, Type: "ext4", Below: []blockdev.Link{
		{Layer: &blockdev.Layer{ID: "254:32"}}}}
	pool := &blockdev.Layer{Kind: blockdev.Filesystem, Type: "zfs", Filesystem: blockdev.OnPool}
	on := func(kind datafiles.Kind, l *blockdev.Layer) PlacedFiles {
		return PlacedFiles{Files: datafiles.Files{Kind: kind, Path: "/db/" + string(kind)},
			Place: blockdev.Place{Layer: l}}
	}
	for name, c := range map[string]struct {
		files []PlacedFiles
		want  []string
	}{
		"disk": {[]PlacedFiles{on(datafiles.Data, disk), on(datafiles.Redo, disk), on(datafiles.Binlog, disk)},
			[]string{"commits waits", "commits waits"}},
		"pool": {[]PlacedFiles{on(datafiles.Data, pool), on(datafiles.Redo, pool)}, []string{"txg"}},
		"both": {[]PlacedFiles{on(datafiles.Data, pool), on(datafiles.Redo, disk)},
			[]string{"txg", "commits waits", "commits waits"}},
		"elsewhere": {[]PlacedFiles{on(datafiles.Redo, nil), on(datafiles.Data, disk)}, nil},
	} {
		notes := notesOn("g", "mysql3306", c.files, limited)
		texts := []string{}
		for _, n := range notes {
			texts = append(texts, n.Text)
		}
		if len(notes) != len(c.want) {
			t.Errorf("%s: %q", name, texts)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(texts[i], want) || !strings.Contains(texts[i], "/dev/vdc") {
				t.Errorf("%s: %q", name, texts)
			}
		}
	}
}
