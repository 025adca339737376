package render

import (
	"fmt"
	"io"
	"strings"

	"bulkhead/internal/disks"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
)

// printStorage draws each filesystem with what it lies on, then the devices on which nothing lies.
func printStorage(out io.Writer, d *disks.Disks) {
	t := &tree{rows: grid{{"STORAGE", "NUMBER", "KIND", "SIZE", "ROTATES", "SCHEDULER", "REMARK"}},
		seen: map[*blockdev.Layer]bool{}, holds: d.Holds}
	for _, l := range d.Roots() {
		t.draw(l, "", "", "")
	}
	t.rows.print(out)
	// The caption is for those that nothing above has shown.
	var rest []*blockdev.Layer
	for _, l := range d.Storage.Unused() {
		if !t.seen[l] && l.Device.Size > 0 && (l.Kind != blockdev.Other || l.Detail != "memory") {
			rest = append(rest, l)
		}
	}
	if len(rest) == 0 {
		return
	}
	Println(out, "Nothing seen here is mounted from these:")
	t.rows = grid{{"DEVICE", "NUMBER", "KIND", "SIZE", "ROTATES", "SCHEDULER", "REMARK"}}
	for _, l := range rest {
		t.draw(l, "", "", "")
	}
	t.rows.print(out)
}

// tree draws layers as rows of a table, each below the one that lies on it.
type tree struct {
	rows  grid
	seen  map[*blockdev.Layer]bool
	holds func(*blockdev.Layer) []string
}

// draw adds a layer and all below it. before is what stands before its own row, after what stands before the rows
// below.
func (t *tree) draw(l *blockdev.Layer, before, after, role string) {
	name := l.Name
	if role != "" {
		name = role + ": " + name
	}
	remarks := t.remarks(l)
	repeated := t.seen[l] && len(l.Below) > 0
	if repeated {
		remarks = []string{"as above"}
	}
	t.seen[l] = true
	row := []string{before + name, "", kindOf(l), "", "", "", ""}
	if d := l.Device; d != nil {
		row[1], row[3] = d.Number, policy.Bytes(d.Size).Human()
		if l.Kind == blockdev.Disk || l.Kind == blockdev.Multipath {
			row[4], row[5] = yesNo(d.Rotational), d.Scheduler
		}
	}
	row[6] = strings.Join(remarks, "; ")
	t.rows = append(t.rows, row)
	if repeated {
		return
	}
	for i, b := range l.Below {
		if i == len(l.Below)-1 {
			t.draw(b.Layer, after+"└─ ", after+"   ", b.Role)
		} else {
			t.draw(b.Layer, after+"├─ ", after+"│  ", b.Role)
		}
	}
}

func (t *tree) remarks(l *blockdev.Layer) []string {
	var remarks []string
	for _, r := range append([]string{l.Model, l.Serial, l.WWID}, t.holds(l)...) {
		if r != "" {
			remarks = append(remarks, r)
		}
	}
	switch {
	case l.Kind == blockdev.Filesystem && l.Filesystem == blockdev.OnNetwork:
		remarks = append(remarks, "on the network: "+l.Source)
	case l.Kind == blockdev.Filesystem && l.Filesystem != blockdev.OnDevice && l.Filesystem != blockdev.OnOthers &&
		l.Filesystem != blockdev.OnUnknown && len(l.Below) == 0:
		remarks = append(remarks, strings.TrimPrefix(noDrive(l), "none: "))
	}
	if l.Trouble != "" {
		remarks = append(remarks, "! "+l.Trouble)
	}
	return remarks
}

// kindOf says in a DBA's words what a layer is.
func kindOf(l *blockdev.Layer) string {
	kind := string(l.Kind)
	switch l.Kind {
	case blockdev.Filesystem:
		kind = l.Type
	case blockdev.Volume:
		kind = "LVM volume"
	case blockdev.Crypt:
		kind = "encrypted"
	case blockdev.Multipath:
		kind = fmt.Sprintf("multipath, %s", Count(len(l.Below), "path", "paths"))
	case blockdev.Mapper:
		kind = "device mapper"
	case blockdev.RAID:
		if l.Detail == "" {
			kind = "md"
		} else {
			kind = ""
		}
	case blockdev.Loop:
		kind = "loop device"
	case blockdev.Pool:
		kind = "ZFS pool"
	case blockdev.Other, blockdev.Stacked:
		if l.Detail != "" {
			kind = ""
		}
	}
	return strings.TrimPrefix(kind+", "+l.Detail, ", ")
}
