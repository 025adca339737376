// Package zfslayout moves a database onto data sets of ZFS, and back.
//
//	facts, err := onhost.Gather(ctx, host, …, request)
//	plan := zfslayout.Make(facts)                  // pure: data sets, edits, steps, and what stands against it
//	err = mover.Apply(ctx, plan)                   // ends what an earlier call began, too
//	err = mover.Rollback(ctx, instance, false)
//	err = mover.Finish(ctx, instance)
//
// Each step is written down and synced first (Record). The old directories are renamed aside and stay until Finish.
// What could change data is ordered so that the server cannot start on half of its files: the data directory is
// renamed first and mounted last. Callers see to it that one of them moves an instance at a time.
package zfslayout

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/disks"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/relaunch"
	"bulkhead/internal/linux/zfs"
)

// Request is what was asked for.
type Request struct {
	Instance string
	Pool     string
	Devices  []string // of a pool that is to be made
	// Single and Files allow a pool that one disk takes with it, and one in files.
	Single, Files bool
}

// Facts are what a plan is made of.
type Facts struct {
	Request
	Found    engine.Instance
	Files    []disks.PlacedFiles
	Trouble  string // of finding the files
	Options  Options
	Dirs     map[string]Dir // of what Files and the plan name, by real path; one that is not there is missing
	Memory   int64          // of the host, bytes
	Pools    []zfs.Pool
	Datasets []zfs.Dataset
	Devices  []Device
	Start    Start
	// Replica says what speaks for replication that runs or may run; "" for nothing. Cluster is the same of a cluster.
	Replica, Cluster string
	SELinux          bool     // a policy of SELinux is loaded
	Pending          bool     // a move of it was begun
	Others           []Holder // processes that have its files open, and do not belong to it
	// AlsoRead are lines of option files, "FILE:LINE", with the name of another server that reads them.
	AlsoRead map[string]string
	Against  []Refusal // what else was found that stands against a move
}

// Options are those of a MySQL server; of others they are empty.
type Options interface {
	Value(name string) string
	From(name string) string // "FILE:LINE", "the command line", ""
	Shared(name string) bool // it stands where clients read it, too
}

// Dir is a directory of the host.
type Dir struct {
	Owner  string // name of a user
	Open   bool   // others may write there
	Bytes  int64  // of what is in it
	Mounts []string
}

// Device is a disk, a partition or a file for a pool.
type Device struct {
	Path    string
	File    bool
	Bytes   int64
	Trouble string
}

// Holder is a process that has files open.
type Holder struct {
	PID  int
	Name string
}

// String is for people.
func (h Holder) String() string { return fmt.Sprintf("%s (process %d)", h.Name, h.PID) }

// Start says how a server is stopped and started again: by its unit, or by its command.
type Start struct {
	Unit    string            `json:"unit,omitempty"`
	Command *relaunch.Command `json:"command,omitempty"`
	Trouble string            `json:"trouble,omitempty"` // why it cannot be started again
}

// Plan is a layout, and the way to it.
type Plan struct {
	Instance string    `json:"instance"`
	Engine   string    `json:"engine"`
	Server   string    `json:"server"` // program and version, for people
	Pool     Pool      `json:"pool"`
	Sets     []Set     `json:"datasets"`
	Edits    []Edit    `json:"edits"`
	Start    Start     `json:"start"`
	Socket   string    `json:"socket,omitempty"`
	Port     int       `json:"port,omitempty"`
	DataDir  string    `json:"datadir"` // every symbolic link followed
	Told     string    `json:"told"`    // the data directory as the server names it
	Steps    []Step    `json:"steps"`
	Notes    []string  `json:"notes"`
	Refused  []Refusal `json:"refused"`
}

// Pool is the pool that the data sets are to be in.
type Pool struct {
	Name   string   `json:"name"`
	Create []string `json:"create,omitempty"` // arguments of zpool create where there is none
	Made   string   `json:"made_of"`
	Free   int64    `json:"free"` // bytes; of one that is to be made what its devices have
	Need   int64    `json:"need"` // bytes of what is to be copied
}

// Set is one data set.
type Set struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // "" of the one above the others
	// Point is where it is to be mounted; Aside is the name that what is there now is kept under, "" for nothing.
	Point string `json:"point,omitempty"`
	Aside string `json:"aside,omitempty"`
	// From is where its files are now, and Only which of them; Except are those that another data set has.
	From       string     `json:"from,omitempty"`
	Only       []string   `json:"only,omitempty"`
	Except     []string   `json:"except,omitempty"`
	Link       string     `json:"link,omitempty"` // in the data set of the data: a symbolic link of this name to Point
	Bytes      int64      `json:"bytes"`
	Properties []Property `json:"properties,omitempty"`
}

// filled are the data sets that get files: all but the one above the others.
func (p *Plan) filled() []Set {
	return slices.DeleteFunc(slices.Clone(p.Sets), func(s Set) bool { return s.Kind == "" })
}

// Property is a property of a data set.
type Property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"inherited_from,omitempty"` // "" where it is set on the data set itself
	Why   string `json:"why,omitempty"`
}

// Edit is one line of an option file. Old is "" for a line that is added behind line After.
type Edit struct {
	File string `json:"file"`
	Line int    `json:"line"` // of Old, or behind which New comes
	Old  string `json:"old,omitempty"`
	New  string `json:"new"`
}

// Step is one step, for people.
type Step struct {
	What   string `json:"what"`
	Writes string `json:"writes,omitempty"`
}

// Refusal is what stands against the plan.
type Refusal struct {
	What string `json:"what"`
	Hint string `json:"hint"`
}

func (p *Plan) refuse(hint, format string, args ...any) {
	r := Refusal{fmt.Sprintf(format, args...), hint}
	if !slices.Contains(p.Refused, r) {
		p.Refused = append(p.Refused, r)
	}
}

func (p *Plan) note(format string, args ...any) {
	p.Notes = append(p.Notes, fmt.Sprintf(format, args...))
}

// Suffix is added to the name of a directory, or of an option file, that is kept.
const Suffix = ".before-zfs"

// open is how files are known that no option names: a process has them open.
const open = "open"

// Make makes the plan. It asks nobody.
func Make(f Facts) *Plan {
	p := &Plan{Instance: f.Instance, Engine: f.Found.Engine, Start: f.Start, Socket: f.Found.Socket, Port: f.Found.Port,
		Server: strings.TrimSpace(cmp.Or(f.Found.Flavor, f.Found.Engine) + " " + f.Found.Version),
		Sets:   []Set{}, Edits: []Edit{}, Steps: []Step{}, Notes: []string{}, Refused: []Refusal{}}
	if f.Found.Engine != engine.MySQL && f.Found.Engine != engine.PostgreSQL {
		p.refuse("MySQL, MariaDB and PostgreSQL are", "%s is not moved by this program", f.Found.Engine)
		return p
	}
	p.judge(f)
	p.place(f)
	for i := range p.Sets {
		p.properties(f, &p.Sets[i])
	}
	p.pool(f)
	for _, s := range p.Sets {
		if f.SELinux && len(s.Only) > 0 {
			p.note("SELinux: files in %s have the labels that they have now, and the next restorecon would give "+
				"them others: semanage fcontext -a -e %s %s", s.Point, p.DataDir, s.Point)
		}
	}
	if len(p.Refused) == 0 {
		p.steps()
	}
	return p
}

// judge refuses what does not depend on the layout.
func (p *Plan) judge(f Facts) {
	switch {
	case f.Trouble != "":
		p.refuse("only root sees all of them", "%s: %s", f.Instance, f.Trouble)
	case f.Found.Container:
		p.refuse("move it from inside of its container", "%s runs in a container", f.Instance)
	}
	if f.Pending {
		p.refuse("`bulkhead zfs apply`, `rollback` or `finish` ends that one", "a move of %s was begun", f.Instance)
	}
	for _, r := range f.Against {
		p.refuse(r.Hint, "%s", r.What)
	}
	for _, o := range f.Others {
		p.refuse("stop it first", "%s has files of %s open", o, f.Instance)
	}
	if f.Found.Socket == "" && f.Found.Port == 0 {
		p.refuse("it has to listen on a socket or a port", "nobody could see whether %s answers", f.Instance)
	}
	if f.Start.Trouble != "" {
		p.refuse("let a service of systemd run it, or start it by its own command", "%s could not be started again: %s",
			f.Instance, f.Start.Trouble)
	}
	if f.Cluster != "" {
		p.refuse("take the node out of the cluster, move it, and let it join again",
			"%s is a member of a cluster (%s): "+
				"what a stop means there cannot be judged", f.Instance, f.Cluster)
	}
	if f.Replica != "" {
		p.refuse("stop replication (STOP REPLICA, or STOP SLAVE) and give --dsn, so that it can be asked",
			"%s replicates, or may: %s", f.Instance, f.Replica)
	}
}

// kinds are the names of data sets for kinds of files, in their order.
var kinds = []struct {
	kind datafiles.Kind
	set  string
}{{datafiles.Redo, "log"}, {datafiles.Binlog, "binlog"}, {datafiles.Relay, "relay"}, {datafiles.Undo, "undo"},
	{datafiles.Temp, "tmp"}}

// place finds out which data sets there are to be, and which files go where.
func (p *Plan) place(f Facts) {
	for _, file := range f.Files {
		if file.Kind == datafiles.Data && file.How == "data directory" {
			p.DataDir, p.Told = cmp.Or(file.Place.Real, file.Path), file.Path
		}
	}
	if p.DataDir == "" {
		p.refuse("`bulkhead discover disks` shows what was found", "no data directory of %s was found", f.Instance)
		return
	}
	top := f.Pool + "/" + f.Instance
	p.Sets = append(p.Sets, Set{Name: top})
	data := Set{Name: top + "/data", Kind: string(datafiles.Data), Point: p.DataDir, Aside: p.DataDir + Suffix,
		From: p.DataDir}
	log, has := p.redo(f, top+"/log")
	if has {
		data.Except = log.Only
	}
	p.Sets = append(p.Sets, data)
	if has {
		p.Sets = append(p.Sets, log)
	}
	for _, k := range kinds[1:] {
		for _, file := range f.Files {
			if file.Kind == k.kind && file.How != open && file.Trouble != "not there" {
				p.separate(f, file, top+"/"+k.set)
			}
		}
	}
	for _, file := range f.Files {
		p.outside(f, file)
	}
	for i := range p.Sets {
		p.directory(f, &p.Sets[i])
	}
}

// covered says whether a data set takes a path.
func (p *Plan) covered(name string) bool {
	return slices.ContainsFunc(p.Sets, func(s Set) bool { return s.Point != "" && mountinfo.Within(name, s.Point) })
}

// redo is the data set of the redo log: where it is now, or beside the data directory, out of which it goes.
func (p *Plan) redo(f Facts, name string) (Set, bool) {
	at := slices.IndexFunc(f.Files, func(d disks.PlacedFiles) bool {
		return d.Kind == datafiles.Redo && d.How != open
	})
	if at < 0 {
		p.note("no redo log was found: it stays where it is")
		return Set{}, false
	}
	real := cmp.Or(f.Files[at].Place.Real, f.Files[at].Path)
	if f.Found.Engine == engine.PostgreSQL {
		if !mountinfo.Within(real, p.DataDir) {
			return Set{Name: name, Kind: "redo log", Point: real, Aside: real + Suffix, From: real}, true
		}
		return Set{Name: name, Kind: "redo log", Point: p.DataDir + "-wal", From: p.DataDir,
			Only: []string{path.Base(real)},
			Link: path.Base(real)}, true
	}
	files := "ib_logfile*"
	if path.Base(real) == "#innodb_redo" {
		files, real = "#innodb_redo", path.Dir(real)
	}
	switch {
	case !mountinfo.Within(real, p.DataDir):
		return Set{Name: name, Kind: "redo log", Point: real, Aside: real + Suffix, From: real}, true
	case real != p.DataDir:
		p.note("the redo log is in %s, inside of the data directory: it stays there, in the data set of the data", real)
		return Set{}, false
	}
	s := Set{Name: name, Kind: "redo log", Point: p.DataDir + "-log", From: p.DataDir, Only: []string{files}}
	p.edit(f, "innodb_log_group_home_dir", s.Point)
	return s, true
}

// edit sets an option in the file that sets it now, or else behind another option of the server.
func (p *Plan) edit(f Facts, name, value string) {
	line := name + " = " + value
	for _, known := range []string{name, "datadir", "socket", "pid_file", "port", "user", "basedir",
		"innodb_buffer_pool_size"} {
		from := f.Options.From(known)
		at := strings.LastIndex(from, ":")
		file := at > 0 && path.IsAbs(from) && !f.Options.Shared(known)
		if known == name && from != "" && !file {
			break // the command line, which outdoes files
		}
		if !file {
			continue
		}
		n, err := strconv.Atoi(from[at+1:])
		if err != nil {
			continue
		}
		e := Edit{File: from[:at], Line: n, New: line}
		if known == name {
			e.Old = name
		}
		if other := f.AlsoRead[from]; other != "" {
			p.refuse("give each of them a section or a file of its own", "line %d of %s is read by %s, too: it would "+
				"write into the redo log of %s", n, e.File, other, f.Instance)
		}
		if mountinfo.Within(e.File, p.DataDir) {
			p.refuse("keep option files elsewhere", "the option file %s is in the data directory", e.File)
		}
		p.Edits = append(p.Edits, e)
		return
	}
	p.refuse("give the server an option file with one of its settings, such as datadir in [mysqld]",
		"no line of an option file sets %s, or anything else that this server reads", name)
}

// separate adds a data set for a directory of its own.
func (p *Plan) separate(f Facts, file disks.PlacedFiles, name string) {
	real := cmp.Or(file.Place.Real, file.Path)
	if p.covered(real) {
		return
	}
	d, there := f.Dirs[real]
	if file.Kind == datafiles.Temp && (!there || d.Open || d.Owner != f.Found.User) {
		if f.Found.Engine == engine.MySQL {
			p.note("%s for temporary files is shared with others, and stays as it is", real)
		}
		return
	}
	if slices.ContainsFunc(p.Sets, func(s Set) bool { return s.Name == name }) {
		name += strconv.Itoa(len(p.Sets))
	}
	p.Sets = append(p.Sets, Set{Name: name, Kind: string(file.Kind), Point: real, Aside: real + Suffix, From: real})
}

// outside refuses data that no data set takes.
func (p *Plan) outside(f Facts, file disks.PlacedFiles) {
	real := cmp.Or(file.Place.Real, file.Path)
	switch {
	case file.Place.Elsewhere:
		p.refuse("run it where the server runs", "%s sees other mounts than this program: %s may be another "+
			"directory there",
			f.Instance, file.Path)
	case file.Trouble == "not there" || file.Kind == datafiles.Temp || p.covered(real):
	case file.Trouble != "":
		p.refuse("`bulkhead discover disks` shows the mounts", "the %s of %s, %q: %s", file.Kind, f.Instance, file.Path,
			file.Trouble)
	case file.How == open && file.Kind != datafiles.Tablespace && file.Kind != datafiles.Data:
	default:
		p.refuse("move it into the data directory first", "the %s of %s, %q, is outside of its data directory",
			file.Kind,
			f.Instance, file.Path)
	}
}

// directory judges the directory that a data set is to be mounted at.
func (p *Plan) directory(f Facts, s *Set) {
	if s.Point == "" {
		return
	}
	d, there := f.Dirs[s.Point]
	s.Bytes = f.Dirs[s.From].Bytes
	if s.Aside == "" {
		if there {
			p.refuse("take it away", "%s is there, where the data set %s is to be mounted", s.Point, s.Name)
		}
		s.Bytes = 0 // it is part of the data
		return
	}
	if _, taken := f.Dirs[s.Aside]; taken {
		p.refuse("take it away, or see what it is of", "%s is there, the name under which %s is to be kept", s.Aside,
			s.Point)
	}
	for _, file := range f.Files {
		if cmp.Or(file.Place.Real, file.Path) == s.Point && file.Place.Layer != nil && file.Place.Layer.Type == "zfs" {
			p.refuse("`bulkhead zfs check` shows how it suits", "%s is on ZFS already", s.Point)
		}
	}
	for _, m := range d.Mounts {
		if m == s.Point {
			p.refuse("move its files into a directory of the file system that holds it, and start the server there",
				"%s is a mount point, which cannot be renamed", m)
		} else {
			p.refuse("unmount it", "%s is mounted below %s", m, s.Point)
		}
	}
	if there && d.Owner != f.Found.User && s.Kind != string(datafiles.Data) {
		p.refuse("give it a directory of its own", "%s belongs to %s and not to %s: others may have files there",
			s.Point,
			d.Owner, f.Found.User)
	}
	for _, other := range p.Sets {
		if other.Point != "" && other.Name != s.Name && mountinfo.Within(s.Point, other.Point) {
			p.refuse("put it beside", "%s lies in %s, which is moved, too", s.Point, other.Point)
		}
	}
}
