package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"bulkhead/internal/control"
	"bulkhead/internal/host"
	"bulkhead/internal/policy"
)

func (a *app) discoverDisks(c *control.Controller) error {
	d, err := c.Disks()
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(disksView(d))
	}
	a.printDisks(d)
	return nil
}

func (a *app) printDisks(d *control.Disks) {
	a.printLandings(d)
	a.printStorage(d)
}

// printLandings says for each database and kind of files where they land.
func (a *app) printLandings(d *control.Disks) {
	if len(d.Databases) == 0 {
		fmt.Fprint(a.out, "no database server that bulkhead knows runs here now\n\n")
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
	g.print(a.out)
	remarks = append(remarks, sharing(d)...)
	remarks = append(remarks, pastTheCache(d)...)
	for _, r := range remarks {
		fmt.Fprintln(a.out, r)
	}
	if len(remarks) > 0 {
		fmt.Fprintln(a.out)
	}
}

// pastTheCache says which files databases write with O_DIRECT, and what that means for limits here.
func pastTheCache(d *control.Disks) []string {
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
			words = append(words, fmt.Sprintf("%s %s, %s", w.Kind, count(w.Files, "file", "files"), how))
		}
		if len(words) > 0 {
			said = append(said, db.Instance.Name()+" writes "+strings.Join(words, "; "))
		}
	}
	switch {
	case len(said) == 0:
	case d.IOVersion == 1:
		said = append(said, "a limit on writing holds what is written with O_DIRECT, and nothing that goes through the page cache: this host limits disks by cgroup v1")
	case d.IOVersion == 2:
		said = append(said, "a limit on writing holds both ways of writing here, on ext4, XFS, btrfs and f2fs; on others what is written with O_DIRECT alone")
	}
	return said
}

// where is the path of files, with where its symbolic links lead.
func where(f control.PlacedFiles) string {
	text := f.Path
	if f.Place.Real != "" && f.Place.Real != f.Path {
		text += " -> " + f.Place.Real
	}
	switch {
	case f.How == "open":
		text += " (" + count(f.Open, "open file", "open files") + ")"
	case f.Trouble != "":
		text += " (" + f.Trouble + ")"
	}
	if f.Place.Elsewhere {
		text += " (in its own mounts)"
	}
	return text
}

func filesystemOf(f control.PlacedFiles) string {
	if f.Place.Layer == nil {
		return ""
	}
	return f.Place.Layer.String()
}

// auxiliary are the roles of layers that take part in reading and writing and do not hold the files.
var auxiliary = []string{host.RolePath, host.RoleCache, host.RoleLog, host.RoleMetadata, host.RoleLower, host.RoleSnapshot}

// landing names the disks in the end, or why there is none.
func landing(f control.PlacedFiles) string {
	if f.Place.Layer == nil {
		return ""
	}
	return landingOf(f.Place.Layer)
}

func landingOf(l *host.Layer) string {
	drives := l.Drives(auxiliary...)
	if len(drives) == 0 {
		return noDrive(l)
	}
	var names []string
	for _, d := range drives {
		name := d.Name
		if d.Kind == host.Missing {
			name += " (not there)"
		}
		if d.Kind == host.Other && d.Detail != "" {
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
func noDrive(l *host.Layer) string {
	for _, b := range l.Below {
		if b.Role == "" && b.Kind != host.Pool {
			return noDrive(b.Layer)
		}
	}
	switch l.Filesystem {
	case host.InMemory:
		return "none: in memory"
	case host.OnNetwork:
		return "none: " + l.Source + " on the network"
	case host.OfProcess:
		return "none: a process serves it"
	case host.OfKernel:
		return "none: the kernel makes it up"
	case host.OnPool:
		return "not told: ZFS"
	}
	return "not told"
}

// sharing names the disks that more than one database keeps files on, with what they keep there.
func sharing(d *control.Disks) []string {
	type use struct {
		drive *host.Layer
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

// printStorage draws each filesystem with what it lies on, then the devices on which nothing lies.
func (a *app) printStorage(d *control.Disks) {
	t := &tree{rows: grid{{"STORAGE", "NUMBER", "KIND", "SIZE", "ROTATES", "SCHEDULER", "REMARK"}}, seen: map[*host.Layer]bool{}, holds: d.Holds}
	for _, l := range d.Roots() {
		t.draw(l, "", "", "")
	}
	t.rows.print(a.out)
	// The caption is for those that nothing above has shown.
	var rest []*host.Layer
	for _, l := range d.Storage.Unused() {
		if !t.seen[l] && l.Device.Size > 0 && (l.Kind != host.Other || l.Detail != "memory") {
			rest = append(rest, l)
		}
	}
	if len(rest) == 0 {
		return
	}
	fmt.Fprintln(a.out, "Nothing seen here is mounted from these:")
	t.rows = grid{{"DEVICE", "NUMBER", "KIND", "SIZE", "ROTATES", "SCHEDULER", "REMARK"}}
	for _, l := range rest {
		t.draw(l, "", "", "")
	}
	t.rows.print(a.out)
}

// tree draws layers as rows of a table, each below the one that lies on it.
type tree struct {
	rows  grid
	seen  map[*host.Layer]bool
	holds func(*host.Layer) []string
}

// draw adds a layer and all below it. before is what stands before its own row, after what stands before the rows below.
func (t *tree) draw(l *host.Layer, before, after, role string) {
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
		if l.Kind == host.Disk || l.Kind == host.Multipath {
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

func (t *tree) remarks(l *host.Layer) []string {
	var remarks []string
	for _, r := range append([]string{l.Model, l.Serial, l.WWID}, t.holds(l)...) {
		if r != "" {
			remarks = append(remarks, r)
		}
	}
	switch {
	case l.Kind == host.Filesystem && l.Filesystem == host.OnNetwork:
		remarks = append(remarks, "on the network: "+l.Source)
	case l.Kind == host.Filesystem && l.Filesystem != host.OnDevice && l.Filesystem != host.OnOthers && l.Filesystem != host.OnUnknown && len(l.Below) == 0:
		remarks = append(remarks, strings.TrimPrefix(noDrive(l), "none: "))
	}
	if l.Trouble != "" {
		remarks = append(remarks, "! "+l.Trouble)
	}
	return remarks
}

// kindOf says in a DBA's words what a layer is.
func kindOf(l *host.Layer) string {
	kind := string(l.Kind)
	switch l.Kind {
	case host.Filesystem:
		kind = l.Type
	case host.Volume:
		kind = "LVM volume"
	case host.Crypt:
		kind = "encrypted"
	case host.Multipath:
		kind = fmt.Sprintf("multipath, %s", count(len(l.Below), "path", "paths"))
	case host.Mapper:
		kind = "device mapper"
	case host.RAID:
		if l.Detail == "" {
			kind = "md"
		} else {
			kind = ""
		}
	case host.Loop:
		kind = "loop device"
	case host.Pool:
		kind = "ZFS pool"
	case host.Other, host.Stacked:
		if l.Detail != "" {
			kind = ""
		}
	}
	return strings.TrimPrefix(kind+", "+l.Detail, ", ")
}

// grid is a table whose cells may hold a drawing, so that columns are as wide as what a terminal shows.
type grid [][]string

// print writes the table and an empty line, without blanks at the ends of lines.
func (g grid) print(w io.Writer) {
	widths := make([]int, len(g[0]))
	for _, row := range g {
		for i, cell := range row {
			row[i] = strings.TrimSuffix(host.Printable(cell), ", ")
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	for _, row := range g {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(cell)
			b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2))
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
	fmt.Fprintln(w)
}

// The JSON of `discover disks`.

type disksJSON struct {
	Databases   []landingsJSON `json:"databases"`
	Filesystems []string       `json:"filesystems"` // layers, in the order of their mounts
	Unused      []string       `json:"unused"`      // layers on which nothing lies
	Layers      []layerJSON    `json:"layers"`
}

type landingsJSON struct {
	Name    string                `json:"name"`
	Engine  string                `json:"engine"`
	PID     int                   `json:"pid"`
	Files   []landingJSON         `json:"files"`
	Written []control.WrittenKind `json:"written,omitempty"`
	Trouble string                `json:"trouble,omitempty"`
}

type landingJSON struct {
	Kind      string   `json:"kind"`
	Path      string   `json:"path"`
	RealPath  string   `json:"real_path,omitempty"`
	How       string   `json:"how"`
	Open      int      `json:"open_files,omitempty"`
	Layer     string   `json:"layer,omitempty"`
	Drives    []string `json:"drives"` // layers
	Elsewhere bool     `json:"own_mounts"`
	Trouble   string   `json:"trouble,omitempty"`
}

type layerJSON struct {
	ID         string      `json:"id"`
	Kind       string      `json:"kind"`
	Name       string      `json:"name"`
	Number     string      `json:"number,omitempty"`
	SizeBytes  int64       `json:"size_bytes,omitempty"`
	Rotational *bool       `json:"rotational,omitempty"`
	Scheduler  string      `json:"scheduler,omitempty"`
	Type       string      `json:"filesystem,omitempty"`
	On         string      `json:"filesystem_on,omitempty"` // device, network, memory, …
	Mount      string      `json:"mounted_at,omitempty"`
	Source     string      `json:"source,omitempty"`
	Detail     string      `json:"detail,omitempty"`
	Model      string      `json:"model,omitempty"`
	Serial     string      `json:"serial,omitempty"`
	WWID       string      `json:"wwid,omitempty"`
	Below      []belowJSON `json:"below"`
	Trouble    string      `json:"trouble,omitempty"`
}

type belowJSON struct {
	Layer string `json:"layer"`
	Role  string `json:"role,omitempty"`
}

func disksView(d *control.Disks) disksJSON {
	id := func(l *host.Layer) string { return l.ID }
	v := disksJSON{Filesystems: list(d.Roots(), id), Unused: list(d.Storage.Unused(), id), Layers: []layerJSON{}}
	v.Databases = list(d.Databases, func(db control.DatabaseFiles) landingsJSON {
		return landingsJSON{Name: db.Instance.Name(), Engine: db.Instance.Engine, PID: db.Instance.Main.PID, Trouble: db.Trouble, Written: db.Written, Files: list(db.Files, landingView)}
	})
	seen := map[*host.Layer]bool{}
	var add func(l *host.Layer)
	add = func(l *host.Layer) {
		if seen[l] {
			return
		}
		seen[l] = true
		v.Layers = append(v.Layers, layerView(l))
		for _, b := range l.Below {
			add(b.Layer)
		}
	}
	for _, l := range append(d.Roots(), d.Storage.Unused()...) {
		add(l)
	}
	return v
}

func landingView(f control.PlacedFiles) landingJSON {
	l := landingJSON{Kind: string(f.Kind), Path: f.Path, RealPath: f.Place.Real, How: f.How, Open: f.Open, Drives: []string{}, Elsewhere: f.Place.Elsewhere, Trouble: f.Trouble}
	if f.Place.Layer != nil {
		l.Layer = f.Place.Layer.ID
		l.Drives = list(f.Place.Layer.Drives(auxiliary...), func(d *host.Layer) string { return d.ID })
	}
	return l
}

func layerView(l *host.Layer) layerJSON {
	v := layerJSON{
		ID: l.ID, Kind: string(l.Kind), Name: l.Name, Type: l.Type, On: string(l.Filesystem), Mount: l.Point, Source: l.Source, Detail: l.Detail,
		Model: l.Model, Serial: l.Serial, WWID: l.WWID, Trouble: l.Trouble,
		Below: list(l.Below, func(b host.Link) belowJSON { return belowJSON{Layer: b.ID, Role: b.Role} }),
	}
	if d := l.Device; d != nil {
		v.Number, v.SizeBytes, v.Rotational, v.Scheduler = d.Number, d.Size, &d.Rotational, d.Scheduler
	}
	return v
}

// measureDisks measures what the disks below a path can do, and says it as a policy would.
func (a *app) measureDisks(ctx context.Context, c *control.Controller, target string) error {
	m, err := c.Measure(ctx, target, func(what string) error {
		_, err := fmt.Fprintf(a.err, "measuring with %s; what uses the disks will feel it\n", what)
		return err
	})
	if err != nil {
		return err
	}
	if a.json {
		return a.printJSON(m)
	}
	a.printMeasured(m, target)
	return nil
}

func (a *app) printMeasured(m *host.Measured, target string) {
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
	g.print(a.out)
	fmt.Fprintf(a.out, "by %s: %s in %.1f s\n(%s, beside whatever else used the disks; a cache in them makes it look better)\n\n",
		m.What, policy.Bytes(m.Bytes).Human(), m.Took.Seconds(), host.MeasuredAs)
	bandwidth, iops := max(m.ReadBandwidth, m.WriteBandwidth), max(m.ReadOps, m.WriteOps)
	fmt.Fprintf(a.out, "for a policy, if it is to go by this:\n  host: {io: [{on: %s, bandwidth: %s, iops: %d}]}\n", cmp.Or(target, "/"), bare(bandwidth), max(iops, 1))
	if m.WriteBandwidth > 0 {
		direction := func(bandwidth, inRow, random int64) string {
			return fmt.Sprintf("{bandwidth: %s, sequential: %d, random: %d}", bare(bandwidth), max(inRow, 1), max(random, 1))
		}
		fmt.Fprintf(a.out, "and, on one disk, to have iocost hold weights there:\n  host: {io: [{on: %s, model: {read: %s, write: %s}}]}\n", cmp.Or(target, "/"),
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
