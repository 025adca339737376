package render

import (
	"bytes"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/disks"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/transaction"
)

// disksOf looks at the storage of a fixture.
func disksOf(t *testing.T, fixture string) *disks.Disks {
	t.Helper()
	c, err := transaction.Open(transaction.Options{NoState: true,
		Root: linuxtest.Unpack(t, linuxtest.Text(t, "storage/"+fixture))})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := disks.Find(c.Host)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDisksText(t *testing.T) {
	for _, fixture := range []string{"dbhost", "nested", "multipath", "nvme-multipath", "lvm-thin", "zfs", "network",
		"vanished", "ring", "loop-on-lvm", "bcache", "overlay"} {
		t.Run(fixture, func(t *testing.T) {
			text := printed(func(out io.Writer) { Disks(Printable(out, 0), disksOf(t, fixture)) })
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
	if err := JSON(&out, DisksView(disksOf(t, "dbhost"))); err != nil {
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

func TestPrintMeasured(t *testing.T) {
	both := blockdev.Measured{What: "writes and reads of a temporary file of up to 512 MiB in /data, for up to 8s",
		ReadBandwidth: 512_345_678, ReadOps: 81230, WriteBandwidth: 480_000_000, WriteOps: 40110, Bytes: 1 << 30,
		Took: 8100 * time.Millisecond}
	text := printed(func(out io.Writer) { Measured(out, &both, "/data") })
	for _, want := range []string{"bandwidth   512 MB/s  480 MB/s", "operations  81230/s   40110/s", "1 GiB in 8.1 s",
		"host: {io: [{on: /data, bandwidth: 512MB/s, iops: 81230}]}"} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
	slow := blockdev.Measured{What: "reads of sdb", ReadBandwidth: 900_000, ReadOps: 3, Took: time.Second}
	text = printed(func(out io.Writer) { Measured(out, &slow, "/dev/sdb") })
	for _, want := range []string{"900 kB/s  not measured", "bandwidth: 900kB/s, iops: 3"} {
		if !strings.Contains(text, want) {
			t.Errorf("lacks %q:\n%s", want, text)
		}
	}
}

// What O_DIRECT means depends on what limits disks here.
func TestPastTheCache(t *testing.T) {
	d := disksOf(t, "dbhost")
	for version, want := range map[int]string{0: "", 1: "what a process syncs itself",
		2: "holds both ways of writing"} {
		d.IOVersion = version
		said := strings.Join(pastTheCache(d), "\n")
		if !strings.Contains(said, "mysql3306 writes data 3 files, with O_DIRECT") || !strings.Contains(said, want) ||
			strings.Contains(said, "a limit on writing") != (version > 0) {
			t.Errorf("version %d: %s", version, said)
		}
	}
	if said := pastTheCache(&disks.Disks{IOVersion: 1}); len(said) > 0 {
		t.Errorf("without a database: %q", said)
	}
}
