package disks

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
)

// LogNotes says which limits on writing a database's commits wait for: those of its group, or of one above, on a device
// that holds its redo log. A commit waits there behind whatever else the group writes and asks the disk to keep. Of a
// database on ZFS it says that they do not hold it there. What cannot be read is left out.
func LogNotes(h *host.Host, v *snapshot.Snapshot) []plan.Note {
	var notes []plan.Note
	var storage *blockdev.Storage // read once, and only where something is limited
	for _, inst := range v.Instances {
		group := groupOf(v, inst)
		limited := writeLimits(v, group)
		if group == "" || len(limited) == 0 {
			continue
		}
		if storage == nil {
			var err error
			if storage, err = h.Block.Storage(); err != nil {
				return nil
			}
		}
		files, _ := datafiles.Of(inst, v.Observed.Processes, recognise.SourceOf(h))
		notes = append(notes, notesOn(group, inst.Name(), placeFiles(storage, inst.Main.PID, files), limited)...)
	}
	return notes
}

// notesOn are the notes on one instance's files, whose group has limits on writing.
func notesOn(group, instance string, files []PlacedFiles, limited []policy.Setting) (notes []plan.Note) {
	pooled := false
	for _, f := range files {
		if f.Place.Layer == nil {
			continue
		}
		if f.Place.Layer.Filesystem == blockdev.OnPool && !pooled {
			pooled = true
			notes = append(notes, plan.Note{Group: group, Key: limited[0].Key, Text: fmt.Sprintf(
				"the %s of %s (%s) is on ZFS, whose writes, of a txg and of the ZIL, come from threads of the kernel: "+
					"no limit on writing (%s on %s) holds this group on the disks of its pool, on cgroup v1 or v2. "+
					"Instead, cpu.limit bounds what it can ask for, a file system on a ZFS volume (zvol) can be "+
					"limited, and the server's own settings bound what it writes in the background "+
					"(innodb_io_capacity_max)", f.Kind, instance, f.Path, limited[0].Key, limited[0].On)})
		}
		if f.Kind != datafiles.Redo && f.Kind != datafiles.Binlog {
			continue
		}
		for _, s := range limited {
			if liesOn(f.Place.Layer, s.Dev) && !slices.ContainsFunc(notes, about(group, s)) {
				notes = append(notes, plan.Note{Group: group, Key: s.Key, Text: fmt.Sprintf(
					"%s on %s: the %s of %s (%s) is written there, so each of its commits waits for this limit, "+
						"behind all that the group writes and syncs: a backup that syncs takes the whole of it. "+
						"Put backups into a group of their own, and limit that one",
					s.Key, s.On, f.Kind, instance, f.Path)})
			}
		}
	}
	return notes
}

// about tells notes of a group's setting.
func about(group string, s policy.Setting) func(plan.Note) bool {
	return func(n plan.Note) bool {
		return n.Group == group && n.Key == s.Key && strings.HasPrefix(n.Text, string(s.Key)+" on "+s.On+":")
	}
}

// groupOf is the group that an instance's main process belongs to, "" when it belongs to none.
func groupOf(v *snapshot.Snapshot, inst engine.Instance) string {
	for i := range v.Classified.Placements {
		if p := &v.Classified.Placements[i]; p.Process.ID == inst.Main {
			return p.Group
		}
	}
	return ""
}

// writeLimits are the limits on writing to a device that hold a group: its own, and those of the groups above it.
func writeLimits(v *snapshot.Snapshot, group string) []policy.Setting {
	var limits []policy.Setting
	for _, g := range v.Classified.Groups {
		if !policy.Covers([]string{g.Path}, group) {
			continue
		}
		for _, s := range g.Settings {
			_, unlimited := s.Value.(policy.Unlimited)
			if (s.Key == policy.KeyIOWriteBandwidth || s.Key == policy.KeyIOWriteIOPS) && s.Dev != "" && !unlimited {
				limits = append(limits, s)
			}
		}
	}
	return limits
}

// liesOn says whether a layer is the device of that number, or lies on it.
func liesOn(l *blockdev.Layer, number string) bool {
	return l.ID == number || slices.ContainsFunc(l.Below, func(b blockdev.Link) bool { return liesOn(b.Layer, number) })
}
