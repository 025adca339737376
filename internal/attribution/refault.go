package attribution

import (
	"cmp"
	"slices"
)

// blameRefaults moves in the wait of v for disks what it reads there again, because the kernel had taken its page cache
// for others, from its own load, and from what the disk takes for these reads, to those who have its wait for memory.
// Without the others it would have read none of that. The sum stays what it was.
func (w *Window) blameRefaults(v *Group, disk, memory *Resource) {
	again, moved, takers := w.readAgain(v), 0.0, 0.0
	if again <= 0 || !memory.Known || memory.Part < Harm {
		return
	}
	for _, of := range memory.Rows {
		if of.takes() {
			takers += of.Share
		}
	}
	for i := range disk.Rows {
		if row := &disk.Rows[i]; row.Who == OwnLoad || row.Who == Service {
			moved += row.Seconds * again
			row.Seconds -= row.Seconds * again * takers
		}
	}
	if moved <= 0 {
		return
	}
	for _, of := range memory.Rows {
		if !of.takes() {
			continue
		}
		same := func(row Row) bool { return row.Who == of.Who && row.Group == of.Group && row.Name == of.Name }
		to := slices.IndexFunc(disk.Rows, same)
		if to < 0 {
			row := of
			row.Seconds, row.Grade = 0, Estimated
			row.Did += ", so that " + v.Name + " reads again what it had in memory"
			disk.Rows = slices.Insert(disk.Rows, 0, row)
			to = 0
		}
		disk.Rows[to].Seconds += moved * of.Share
	}
	last := len(disk.Rows) - 1 // unexplained
	slices.SortStableFunc(disk.Rows[:last], func(a, b Row) int { return cmp.Compare(b.Seconds, a.Seconds) })
	for i := range disk.Rows {
		disk.Rows[i].Share = disk.Rows[i].Seconds / disk.Waited
	}
	disk.Rows = slices.DeleteFunc(disk.Rows, func(row Row) bool { return row.Who != Unexplained && row.Seconds <= 0 })
}

// readAgain is the part of what v and groups below it read that they had in memory before.
func (w *Window) readAgain(v *Group) float64 {
	read := 0.0
	for i := range w.Groups {
		if g := &w.Groups[i]; v.has(g.Name) && g.Tasks != nil {
			read += g.Tasks.ReadBytes
		}
	}
	if v.Refaults == nil || read <= 0 {
		return 0
	}
	return min(1, *v.Refaults*pageSize/read)
}

// takes says of a row of memory that it is of somebody else who takes it.
func (row *Row) takes() bool { return row.Who == Other || row.Who == Outside }
