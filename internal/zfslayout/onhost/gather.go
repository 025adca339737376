// Package onhost finds out on a host what a layout is planned from, and stops and starts the server that is moved.
//
//	facts, err := onhost.Gather(ctx, host, tools, disks, database, request, asked)
//	mover := zfslayout.Mover{Server: onhost.HostServer{…}, Holders: onhost.Holders(host), …}
package onhost

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/backuplock"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/disks"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/linux/treecopy"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/zfslayout"
)

// Asked is who is asked beside files: a server, and what is known when there is no login to it, and systemd.
type Asked struct {
	Login *dblogin.Login // nil where nobody can be asked
	Units Units          // nil where systemd does not run
	Note  func(text string)
}

// gathering are facts that are being found.
type gathering struct{ zfslayout.Facts }

// Gather finds all that a plan for one of the databases is made of. It changes nothing.
func Gather(ctx context.Context, h *host.Host, tools zfs.Tools, d *disks.Disks, db disks.DatabaseFiles,
	r zfslayout.Request, asked Asked) (zfslayout.Facts, error) {
	f := &gathering{zfslayout.Facts{Request: r, Dirs: map[string]zfslayout.Dir{}}}
	f.Found, f.Files, f.Trouble = db.Instance, db.Files, db.Trouble
	procs, err := h.Proc.Processes(procfs.Options{})
	if err != nil {
		return f.Facts, fmt.Errorf("read the process table: %w", err)
	}
	facts, err := h.Facts()
	if err != nil {
		return f.Facts, err
	}
	f.Memory = facts.MemTotal
	f.SELinux = selinux.Host{Root: h.Root}.Loaded()
	all := []engine.Instance{}
	for _, other := range d.Databases {
		all = append(all, other.Instance)
	}
	f.Start = startOf(ctx, h.Proc, db.Instance, procs, all, asked.Units)
	for i, file := range f.Files { // a service has mounts of its own, and most often the same directories in them
		place := &f.Files[i].Place
		place.Elsewhere = place.Elsewhere && !h.Proc.Sees(db.Instance.Main.PID, cmp.Or(file.Place.Real, file.Path))
	}
	f.options(h, procs)
	f.alsoRead(h, procs, all)
	if err := answers(ctx, f.Found.Engine, f.Found.Socket, f.Found.Port); err != nil {
		f.Against = append(f.Against, zfslayout.Refusal{Hint: "it has to listen on a socket, or a port of localhost",
			What: fmt.Sprintf("%s does not answer now, and so nobody could see whether it does afterwards: %v",
				f.Instance, err)})
	}
	if err := f.ask(ctx, d, asked); err != nil {
		return f.Facts, err
	}
	if err := f.pools(ctx, tools); err != nil {
		return f.Facts, err
	}
	f.devices(d.Storage)
	err = f.dirs(ctx, h)
	return f.Facts, err
}

// optionsOf reads those of a MySQL server.
func optionsOf(h *host.Host, procs []procfs.Process, inst engine.Instance) (o options.MySQLOptions, is bool) {
	at := slices.IndexFunc(procs, func(p procfs.Process) bool { return p.ID == inst.Main })
	if at < 0 || inst.Engine != engine.MySQL {
		return o, false
	}
	src := recognise.SourceOf(h)
	list := func(dir string) []string {
		entries, _ := src.ReadRootDir(procs[at].PID, dir, 1000)
		names := []string{}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	return options.Reader{Source: src}.MySQLWith(&procs[at], list), true
}

// alsoRead notes which lines of option files other servers read, too.
func (f *gathering) alsoRead(h *host.Host, procs []procfs.Process, all []engine.Instance) {
	f.AlsoRead = map[string]string{}
	for _, other := range all {
		if o, is := optionsOf(h, procs, other); is && other.Main != f.Found.Main {
			for _, line := range o.Lines() {
				f.AlsoRead[line] = other.Name()
			}
		}
	}
}

// options reads those of the server, where it is of MySQL.
func (f *gathering) options(h *host.Host, procs []procfs.Process) {
	o, is := optionsOf(h, procs, f.Found)
	f.Options = o
	if !is {
		return
	}
	f.judge(o, func(name string) bool {
		_, err := os.Lstat(filepath.Join(f.Found.DataDir, name))
		return err == nil
	}, func(pattern string) []string {
		names, _ := filepath.Glob(filepath.Join(f.Found.DataDir, pattern))
		return names
	})
}

// judge looks for a cluster, and for replication.
func (f *gathering) judge(o zfslayout.Options, has func(name string) bool, like func(pattern string) []string) {
	switch provider := o.Value("wsrep_provider"); {
	case has("grastate.dat"):
		f.Cluster = "grastate.dat is in its data directory"
	case provider != "" && !strings.EqualFold(provider, "none"):
		f.Cluster = "wsrep_provider, set in " + o.From("wsrep_provider")
	case o.Value("group_replication_group_name") != "":
		f.Cluster = "group_replication_group_name, set in " + o.From("group_replication_group_name")
	case o.From("ndbcluster") != "":
		f.Cluster = "ndbcluster, set in " + o.From("ndbcluster")
	}
	for _, pattern := range []string{"master*.info", "relay-log*.info", "*relay-bin*.index"} {
		if found := like(pattern); len(found) > 0 && f.Replica == "" {
			f.Replica = path.Base(found[0]) + " is in its data directory, and it was not asked"
		}
	}
	for _, file := range f.Files {
		if file.Kind == datafiles.Relay && file.Trouble == "" && f.Replica == "" {
			f.Replica = "it has a relay log in " + file.Path + ", and it was not asked"
		}
	}
}

// ask asks a MySQL server for files that lie elsewhere, and whether it replicates.
func (f *gathering) ask(ctx context.Context, d *disks.Disks, asked Asked) error {
	if f.Found.Engine != engine.MySQL || asked.Login == nil {
		return nil
	}
	session, err := backuplock.Open(ctx, asked.Login, backuplock.Limits{Wait: 10 * time.Second, Hold: time.Second})
	if err != nil {
		if asked.Note != nil {
			asked.Note(fmt.Sprintf("%s was not asked for tables outside and replication: %v", f.Instance, err))
		}
		return nil
	}
	defer session.Close()
	f.Found.Version = cmp.Or(session.Version, f.Found.Version)
	for _, name := range session.Files {
		file := disks.PlacedFiles{Files: datafiles.Files{Kind: datafiles.Tablespace, Path: name, How: "the server"}}
		if file.Place, err = d.Storage.Place(f.Found.Main.PID, name); err != nil {
			file.Trouble = err.Error()
		}
		f.Files = append(f.Files, file)
	}
	why, err := session.Replicating(ctx)
	if err != nil {
		return api.Errorf(api.CodeFailed, "the account needs REPLICATION CLIENT (MariaDB: SLAVE MONITOR)",
			"ask %s whether it replicates: %w", f.Instance, err)
	}
	f.Replica = why
	return nil
}

// pools reads the pools, and what data sets the one that was asked for has.
func (f *gathering) pools(ctx context.Context, tools zfs.Tools) error {
	var err error
	if f.Pools, err = tools.Pools(ctx); err != nil {
		return err
	}
	if slices.ContainsFunc(f.Pools, func(p zfs.Pool) bool { return p.Name == f.Pool }) {
		f.Datasets, err = tools.Below(ctx, []string{"available"}, f.Pool)
	}
	return err
}

// devices looks at those for a pool.
func (f *gathering) devices(storage *blockdev.Storage) {
	for _, name := range f.Request.Devices {
		d := zfslayout.Device{Path: name}
		info, err := os.Stat(name)
		switch {
		case !filepath.IsAbs(name):
			d.Trouble = "write the whole path"
		case err != nil:
			d.Trouble = err.Error()
		case info.Mode().IsRegular():
			d.File, d.Bytes = true, info.Size()
		case info.Mode()&fs.ModeDevice != 0 && info.Mode()&fs.ModeCharDevice == 0:
			file, err := os.Open(name)
			if err != nil {
				d.Trouble = err.Error()
				break
			}
			if d.Bytes, err = file.Seek(0, 2); err != nil {
				d.Trouble = err.Error()
			}
			_ = file.Close()
		default:
			d.Trouble = "it is neither a disk nor a file"
		}
		if place, err := storage.Place(0, name); d.Trouble == "" && err == nil && place.Layer.InMemory() {
			d.Trouble = "it is in memory: what is written there is gone after a boot"
		}
		f.Devices = append(f.Devices, d)
	}
}

// editable tries the edits of a plan.
func (f *gathering) editable(p *zfslayout.Plan) {
	for _, e := range p.Edits {
		if err := zfslayout.Editable(e, p.DataDir); err != nil {
			f.Against = append(f.Against, zfslayout.Refusal{
				What: fmt.Sprintf("the option file %s cannot be edited: %v", e.File, err),
				Hint: "give it to root, in a directory that only root can write to"})
		}
	}
}

// dirs looks at the directories that the plan is about, and measures those that are copied.
func (f *gathering) dirs(ctx context.Context, h *host.Host) error {
	mounts, err := mountinfo.Read(h.Root)
	if err != nil {
		return err
	}
	look := func(name string) {
		info, err := os.Lstat(name)
		if err != nil {
			return
		}
		d := zfslayout.Dir{Open: info.Mode().Perm()&0o022 != 0}
		if uid, _, err := treecopy.Owner(name); err == nil {
			d.Owner = h.Users.UserName(uid)
		}
		for _, m := range mounts {
			if mountinfo.Within(m.Point, name) && mounts.Visible(m) {
				d.Mounts = append(d.Mounts, m.Point)
			}
		}
		f.Dirs[name] = d
	}
	for _, file := range f.Files {
		look(cmp.Or(file.Place.Real, file.Path))
	}
	moved := []string{}
	first := zfslayout.Make(f.Facts) // which knows no sizes yet
	f.editable(first)
	for _, s := range first.Sets {
		for _, name := range []string{s.Point, s.Aside} {
			if name != "" {
				look(name)
			}
		}
		d, there := f.Dirs[s.From]
		if s.From == "" || s.From != s.Point || !there {
			continue
		}
		moved = append(moved, s.From)
		size, err := treecopy.Measure(ctx, treecopy.Tree{Dir: s.From})
		if err != nil && len(d.Mounts) == 0 {
			return api.Errorf(api.CodeFailed, "", "measure %s: %w", s.From, err)
		}
		d.Bytes = size.Bytes
		f.Dirs[s.From] = d
	}
	holders, err := Holders(h)(ctx, moved)
	for _, other := range holders {
		if !slices.ContainsFunc(f.Found.Members, func(m engine.Member) bool { return m.ID.PID == other.PID }) {
			f.Others = append(f.Others, other)
		}
	}
	return err
}
