package cli

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/control"
	"bulkhead/internal/host/hosttest"
)

// disksOf looks at the storage of a fixture.
func disksOf(t *testing.T, fixture string) *control.Disks {
	t.Helper()
	c, err := control.Open(control.Options{NoState: true, Root: hosttest.Unpack(t, hosttest.Text(t, "storage/"+fixture))})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := c.Disks()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDisksText(t *testing.T) {
	for _, fixture := range []string{"dbhost", "nested", "multipath", "nvme-multipath", "lvm-thin", "zfs", "network", "vanished", "ring", "loop-on-lvm", "bcache", "overlay"} {
		t.Run(fixture, func(t *testing.T) {
			text := printed(func(a *app) { a.out = printable{a.out}; a.printDisks(disksOf(t, fixture)) })
			golden(t, "disks-"+fixture, text)
			for line := range strings.Lines(text) {
				if strings.TrimRight(line, " \n") != strings.TrimSuffix(line, "\n") {
					t.Errorf("blanks at the end of %q", line)
				}
			}
		})
	}
}

func TestDisksJSON(t *testing.T) {
	var out bytes.Buffer
	a := &app{stdout: &out}
	if err := a.printJSON(disksView(disksOf(t, "dbhost"))); err != nil {
		t.Fatal(err)
	}
	golden(t, "disks-dbhost.json", out.String())
	if strings.Contains(out.String(), ": null") {
		t.Error("a list is null")
	}
	// Every layer that is named is there.
	var v disksJSON
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, l := range v.Layers {
		ids = append(ids, l.ID)
	}
	named := append(v.Filesystems, v.Unused...)
	for _, l := range v.Layers {
		for _, b := range l.Below {
			named = append(named, b.Layer)
		}
	}
	for _, db := range v.Databases {
		for _, f := range db.Files {
			named = append(named, f.Drives...)
		}
	}
	for _, id := range named {
		if !slices.Contains(ids, id) {
			t.Errorf("%q is no layer", id)
		}
	}
}
