package attribution

import (
	"cmp"
	"slices"
)

// blameRefaults moves in the wait of v for disks what it reads there again, because the kernel had taken its page cache
// for others, from its own load to those who have its wait for memory. Without the others it would have read none of
// that. The sum stays what it was.
func (w *Window) blameRefaults(v *Group, disk, memory *Resource) {
	if v.Refaults == nil || *v.Refaults <= 0 || !memory.Known || memory.Part < Harm {
		return
	}
	at := slices.IndexFunc(disk.Rows, func(row Row) bool { return row.Who == OwnLoad })
	read := 0.0
	for i := range w.Groups {
		if g := &w.Groups[i]; v.has(g.Name) && g.Tasks != nil {
			read += g.Tasks.ReadBytes
		}
	}
	if at < 0 || read <= 0 {
		return
	}
	part := disk.Rows[at].Seconds * min(1, *v.Refaults*pageSize/read)
	for _, of := range memory.Rows {
		if of.Who != Other && of.Who != Outside {
			continue
		}
		moved := part * of.Share
		same := func(row Row) bool { return row.Who == of.Who && row.Group == of.Group && row.Name == of.Name }
		to := slices.IndexFunc(disk.Rows, same)
		if to < 0 {
			row := of
			row.Seconds, row.Grade = 0, Estimated
			row.Did += ", so that " + v.Name + " reads again what it had in memory"
			disk.Rows = slices.Insert(disk.Rows, at, row)
			to, at = at, at+1
		}
		disk.Rows[to].Seconds += moved
		disk.Rows[at].Seconds -= moved
	}
	last := len(disk.Rows) - 1 // unexplained
	slices.SortStableFunc(disk.Rows[:last], func(a, b Row) int { return cmp.Compare(b.Seconds, a.Seconds) })
	for i := range disk.Rows {
		disk.Rows[i].Share = disk.Rows[i].Seconds / disk.Waited
	}
	disk.Rows = slices.DeleteFunc(disk.Rows, func(row Row) bool { return row.Who != Unexplained && row.Seconds <= 0 })
}
