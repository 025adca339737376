package render

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"bulkhead/internal/disks"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/policy"
)

// Disks prints which files of each database land on which disks, and what lies on what.
func Disks(out io.Writer, d *disks.Disks) {
	printLandings(out, d)
	printStorage(out, d)
}

// printLandings says for each database and kind of files where they land.
func printLandings(out io.Writer, d *disks.Disks) {
	if len(d.Databases) == 0 {
		Printf(out, "no database server that bulkhead knows runs here now\n\n")
		return
	}
	g := grid{{"DATABASE", "FILES", "WHERE", "ON", "DISKS"}}
	var remarks []string
	for _, db := range d.Databases {
		name := db.Instance.Name()
		for _, f := range db.Files {
			g = append(g, []string{name, string(f.Kind), where(f), dash(filesystemOf(f)), dash(landing(f))})
			name = ""
		}
		if len(db.Files) == 0 {
			g = append(g, []string{name, "-", "-", "-", "-"})
		}
		if db.Trouble != "" {
			remarks = append(remarks, db.Instance.Name()+": "+db.Trouble)
		}
	}
	g.print(out)
	remarks = append(remarks, sharing(d)...)
	remarks = append(remarks, pastTheCache(d)...)
	for _, r := range remarks {
		Println(out, r)
	}
	if len(remarks) > 0 {
		Println(out)
	}
}

// pastTheCache says which files databases write with O_DIRECT, and what that means for limits here.
func pastTheCache(d *disks.Disks) []string {
	var said []string
	for _, db := range d.Databases {
		var words []string
		for _, w := range db.Written {
			how := "through the page cache"
			switch {
			case w.Direct == w.Files:
				how = "with O_DIRECT"
			case w.Direct > 0:
				how = fmt.Sprintf("%d of them with O_DIRECT", w.Direct)
			}
			words = append(words, fmt.Sprintf("%s %s, %s", w.Kind, Count(w.Files, "file", "files"), how))
		}
		if len(words) > 0 {
			said = append(said, db.Instance.Name()+" writes "+strings.Join(words, "; "))
		}
	}
	switch {
	case len(said) == 0:
	case d.IOVersion == 1:
		said = append(said, "a limit on writing holds what is written with O_DIRECT and what a process syncs itself "+
			"(fsync, O_SYNC, msync), as a commit does, and not what the kernel writes back later: this host limits "+
			"disks by cgroup v1")
	case d.IOVersion == 2:
		said = append(said, "a limit on writing holds both ways of writing here, on ext4, XFS, btrfs and f2fs; on "+
			"others what is written with O_DIRECT alone")
	}
	return said
}

// where is the path of files, with where its symbolic links lead.
func where(f disks.PlacedFiles) string {
	text := f.Path
	if f.Place.Real != "" && f.Place.Real != f.Path {
		text += " -> " + f.Place.Real
	}
	switch {
	case f.How == "open":
		text += " (" + Count(f.Open, "open file", "open files") + ")"
	case f.Trouble != "":
		text += " (" + f.Trouble + ")"
	}
	if f.Place.Elsewhere {
		text += " (in its own mounts)"
	}
	return text
}

func filesystemOf(f disks.PlacedFiles) string {
	if f.Place.Layer == nil {
		return ""
	}
	return f.Place.Layer.String()
}

// auxiliary are the roles of layers that take part in reading and writing and do not hold the files.
var auxiliary = []string{blockdev.RolePath, blockdev.RoleCache, blockdev.RoleLog, blockdev.RoleMetadata,
	blockdev.RoleLower,
	blockdev.RoleSnapshot}

// landing names the disks in the end, or why there is none.
func landing(f disks.PlacedFiles) string {
	if f.Place.Layer == nil {
		return ""
	}
	return landingOf(f.Place.Layer)
}

func landingOf(l *blockdev.Layer) string {
	drives := l.Drives(auxiliary...)
	if len(drives) == 0 {
		return noDrive(l)
	}
	var names []string
	for _, d := range drives {
		name := d.Name
		if d.Kind == blockdev.Missing {
			name += " (not there)"
		}
		if d.Kind == blockdev.Other && d.Detail != "" {
			name += " (" + d.Detail + ")"
		}
		names = append(names, name)
	}
	const most = 6
	if more := len(names) - most; more > 0 {
		names = append(names[:most], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, " ")
}

// noDrive says why a filesystem is on no disk of this host.
func noDrive(l *blockdev.Layer) string {
	for _, b := range l.Below {
		if b.Role == "" && b.Kind != blockdev.Pool {
			return noDrive(b.Layer)
		}
	}
	switch l.Filesystem {
	case blockdev.InMemory:
		return "none: in memory"
	case blockdev.OnNetwork:
		return "none: " + l.Source + " on the network"
	case blockdev.OfProcess:
		return "none: a process serves it"
	case blockdev.OfKernel:
		return "none: the kernel makes it up"
	case blockdev.OnPool:
		return "not told: ZFS"
	}
	return "not told"
}

// sharing names the disks that more than one database keeps files on, with what they keep there.
func sharing(d *disks.Disks) []string {
	type use struct {
		drive *blockdev.Layer
		who   []string
		what  map[string][]string
	}
	var uses []*use
	for _, db := range d.Databases {
		for _, f := range db.Files {
			if f.Place.Layer == nil {
				continue
			}
			for _, drive := range f.Place.Layer.Drives(auxiliary...) {
				at := slices.IndexFunc(uses, func(u *use) bool { return u.drive == drive })
				if at < 0 {
					uses = append(uses, &use{drive: drive, what: map[string][]string{}})
					at = len(uses) - 1
				}
				u, name := uses[at], db.Instance.Name()
				if !slices.Contains(u.who, name) {
					u.who = append(u.who, name)
				}
				if kind := string(f.Kind); !slices.Contains(u.what[name], kind) {
					u.what[name] = append(u.what[name], kind)
				}
			}
		}
	}
	// Disks with the same users, as those of one volume are, make one line.
	var users, drives []string
	for _, u := range uses {
		if len(u.who) < 2 {
			continue
		}
		var parts []string
		for _, name := range u.who {
			parts = append(parts, name+" ("+strings.Join(u.what[name], ", ")+")")
		}
		last := len(parts) - 1
		text := strings.Join(parts[:last], ", ") + " and " + parts[last]
		if at := slices.Index(users, text); at >= 0 {
			drives[at] += " " + u.drive.Name
			continue
		}
		users, drives = append(users, text), append(drives, u.drive.Name)
	}
	for i := range users {
		drives[i] += ": shared by " + users[i]
	}
	return drives
}

// Measured prints what the disks below target can do, and how a policy would say it.
func Measured(out io.Writer, m *blockdev.Measured, target string) {
	written := func(n int64, text string) string {
		if n == 0 {
			return "not measured"
		}
		return text
	}
	g := grid{
		{"", "READS", "WRITES"},
		{"bandwidth", megabytes(m.ReadBandwidth), written(m.WriteBandwidth, megabytes(m.WriteBandwidth))},
		{"operations", fmt.Sprintf("%d/s", m.ReadOps), written(m.WriteOps, fmt.Sprintf("%d/s", m.WriteOps))},
		{"in a row", fmt.Sprintf("%d/s", m.ReadInRow), written(m.WriteInRow, fmt.Sprintf("%d/s", m.WriteInRow))},
	}
	g.print(out)
	Printf(out, "by %s: %s in %.1f s\n(%s, beside whatever else used the disks; a cache in them makes it "+
		"look better)\n\n",
		m.What, policy.Bytes(m.Bytes).Human(), m.Took.Seconds(), blockdev.MeasuredAs)
	bandwidth, iops := max(m.ReadBandwidth, m.WriteBandwidth), max(m.ReadOps, m.WriteOps)
	Printf(out, "for a policy, if it is to go by this:\n  host: {io: [{on: %s, bandwidth: %s, iops: %d}]}\n",
		cmp.Or(target, "/"), bare(bandwidth), max(iops, 1))
	if m.WriteBandwidth > 0 {
		direction := func(bandwidth, inRow, random int64) string {
			return fmt.Sprintf("{bandwidth: %s, sequential: %d, random: %d}", bare(bandwidth), max(inRow, 1),
				max(random, 1))
		}
		Printf(out, "and, on one disk, to have iocost hold weights there:\n"+
			"  host: {io: [{on: %s, model: {read: %s, write: %s}}]}\n", cmp.Or(target, "/"),
			direction(m.ReadBandwidth, m.ReadInRow, m.ReadOps), direction(m.WriteBandwidth, m.WriteInRow, m.WriteOps))
	}
}

// bare is a rate as a policy takes it.
func bare(n int64) string { return strings.ReplaceAll(megabytes(n), " ", "") }

// megabytes is a rate as a policy takes it, but for the blank.
func megabytes(n int64) string {
	if n >= 10e6 {
		return fmt.Sprintf("%d MB/s", n/1e6)
	}
	return fmt.Sprintf("%d kB/s", max(n/1e3, 1))
}
