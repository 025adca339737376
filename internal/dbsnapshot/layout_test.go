package dbsnapshot

import (
	"strings"
	"testing"

	"bulkhead/internal/disks"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/mountinfo"
)

// mounts are two pools, a part of a dataset, a snapshot that somebody looked into, and others.
const mounts = `21 1 253:0 / / rw - ext4 /dev/sda1 rw
22 21 0:50 / /db/data rw - zfs tank/my/data rw
23 21 0:51 / /db/log rw - zfs tank/my/log rw
24 22 0:52 / /db/data/big rw - zfs tank/my/big rw
25 22 0:53 / /db/data/.zfs/snapshot/old ro - zfs tank/my/data@old ro
26 21 0:54 / /other rw - zfs dozer/other rw
27 21 0:55 /sub /part rw - zfs tank/part rw
28 27 8:2 / /part/ext rw - ext4 /dev/sdb rw
29 23 0:56 / /db/log/tmp rw - tmpfs tmpfs rw
`

// on is a place of files, below the deepest mount that holds it.
func on(t *testing.T, kind datafiles.Kind, name string) disks.PlacedFiles {
	t.Helper()
	all, err := mountinfo.Parse([]byte(mounts))
	if err != nil {
		t.Fatal(err)
	}
	m, is := all.Of(name)
	if !is {
		t.Fatalf("nothing holds %s", name)
	}
	return disks.PlacedFiles{Files: datafiles.Files{Kind: kind, Path: name},
		Place: blockdev.Place{Path: name, Real: name, Layer: &blockdev.Layer{Type: m.Type, Source: m.Source}}}
}

func find(t *testing.T, trouble string, files ...disks.PlacedFiles) (Layout, error) {
	t.Helper()
	all, err := mountinfo.Parse([]byte(mounts))
	if err != nil {
		t.Fatal(err)
	}
	return Find(blockdev.NewStorage(nil, all), disks.DatabaseFiles{Instance: engine.Instance{Engine: engine.MySQL,
		Port: 3306}, Files: files, Trouble: trouble}, nil)
}

// The datasets of an instance are those that hold its files and those mounted below them, each once; what no recovery
// reads may be anywhere.
func TestFind(t *testing.T) {
	gone := on(t, datafiles.Tablespace, "/gone")
	gone.Place.Layer, gone.Trouble = nil, "not there"
	running := on(t, datafiles.Tablespace, "/tmp")
	running.How, running.Open = "open", 2
	l, err := find(t, "", on(t, datafiles.Data, "/db/data"), on(t, datafiles.Redo, "/db/log"),
		on(t, datafiles.Binlog, "/db/log/bin"), on(t, datafiles.Temp, "/tmp"), on(t, datafiles.Temp, "/db/log/tmp"),
		gone, running)
	got := []string{}
	for _, d := range l.Datasets {
		got = append(got, d.Name+" "+d.Point)
	}
	want := "tank/my/big /db/data/big, tank/my/data /db/data, tank/my/log /db/log"
	if err != nil || strings.Join(got, ", ") != want || l.DataDir != "/db/data" || l.Instance != "mysql3306" ||
		l.Pool() != "tank" {
		t.Errorf("%+v, %v", l, err)
	}
	if l, err = find(t, "", on(t, datafiles.Data, "/part/db")); err != nil || len(l.Datasets) != 1 ||
		l.Datasets[0] != (Dataset{Name: "tank/part"}) {
		t.Errorf("a part of a dataset: %+v, %v", l, err)
	}
}

// What one snapshot cannot hold is refused, with what to do.
func TestFindRefuses(t *testing.T) {
	data, log := on(t, datafiles.Data, "/db/data"), on(t, datafiles.Redo, "/db/log")
	unknown := on(t, datafiles.Tablespace, "/db/data/x")
	unknown.Place.Layer, unknown.Trouble = nil, "permission denied"
	open := on(t, datafiles.Tablespace, "/srv")
	open.How, open.Open = "open", 1
	for name, tt := range map[string]struct {
		files   []disks.PlacedFiles
		trouble string
		want    string
	}{
		"outside":        {[]disks.PlacedFiles{data, log, on(t, datafiles.Undo, "/srv/undo")}, "", "not on ZFS"},
		"open outside":   {[]disks.PlacedFiles{data, open}, "", "not on ZFS"},
		"two pools":      {[]disks.PlacedFiles{data, on(t, datafiles.Redo, "/other")}, "", "two pools, tank and dozer"},
		"mounted below":  {[]disks.PlacedFiles{on(t, datafiles.Data, "/part")}, "", `"/part/ext", below the data`},
		"tmpfs below":    {[]disks.PlacedFiles{data, log}, "", `"/db/log/tmp", below the redo log`},
		"not found":      {[]disks.PlacedFiles{data, unknown}, "", "permission denied"},
		"not seen":       {[]disks.PlacedFiles{data}, "its open files could not be read", "could not be read"},
		"no data at all": {nil, "", "no data directory"},
	} {
		if _, err := find(t, tt.trouble, tt.files...); !refused(err) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Files that the server itself names are looked for, too.
func TestFindOutside(t *testing.T) {
	all, err := mountinfo.Parse([]byte(mounts))
	if err != nil {
		t.Fatal(err)
	}
	db := disks.DatabaseFiles{Instance: engine.Instance{Engine: engine.MySQL}, Files: []disks.PlacedFiles{
		on(t, datafiles.Data, "/db/data")}}
	_, err = Find(blockdev.NewStorage(nil, all), db, []string{"relative"})
	if !refused(err) || !strings.Contains(err.Error(), "not absolute") {
		t.Error(err)
	}
}
