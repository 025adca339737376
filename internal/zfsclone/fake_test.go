package zfsclone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/zfslayout"
)

// pools is a model of zfs(8). What a file system holds lies in a directory; mounting it puts that in place of the
// directory that it is mounted on.
type pools struct {
	t        *testing.T
	dir      string
	sets     map[string]map[string]string // properties set on each file system, and "mounted"
	held     map[string]string            // snapshots with a clone of them, "" without
	busy     int                          // how often an unmount says that it is busy
	uid, gid int                          // who owns files
	gone     bool                         // the pool is not imported
}

func (p *pools) content(set string) string {
	return filepath.Join(p.dir, "content", strings.ReplaceAll(set, "/", ","))
}

// run does one call.
func (p *pools) run(program string, args ...string) (string, error) {
	if filepath.Base(program) == "pg_controldata" {
		out, err := exec.Command(program, args...).Output()
		return string(out), err
	}
	verb, rest, options := args[0], args[1:], map[string]string{}
	for len(rest) > 1 && strings.HasPrefix(rest[0], "-") {
		name, value, is := strings.Cut(rest[1], "=")
		switch {
		case rest[0] == "-o" && is:
			options[name] = value
			rest = rest[2:]
		case rest[0] == "-o" || rest[0] == "-t" || rest[0] == "-d":
			options[rest[0]] = rest[1]
			rest = rest[2:]
		default:
			rest = rest[1:]
		}
	}
	if p.gone {
		return "", errors.New("cannot open 'tank': dataset does not exist")
	}
	switch verb {
	case "create":
		return "", p.create(rest[0], options)
	case "clone":
		return "", p.clone(rest[0], rest[1], options)
	case "get":
		return p.get(options["-t"], rest[0], rest[1:]), nil
	case "set":
		name, value, _ := strings.Cut(rest[0], "=")
		p.sets[rest[1]][name] = value
		return "", nil
	case "mount":
		return "", p.mount(rest[0])
	case "unmount":
		return "", p.unmount(rest[0])
	case "destroy":
		return "", p.destroy(rest[0])
	}
	return "", fmt.Errorf("the model does not know %s %q", program, args)
}

func (p *pools) create(name string, options map[string]string) error {
	if p.sets[name] != nil || p.sets[filepath.Dir(name)] == nil {
		return fmt.Errorf("create %s: exists, or its parent does not", name)
	}
	p.sets[name] = options
	return nil
}

func (p *pools) clone(snapshot, name string, options map[string]string) error {
	if _, there := p.held[snapshot]; !there {
		return fmt.Errorf("clone %s: there is no such snapshot", snapshot)
	}
	if err := p.create(name, options); err != nil {
		return err
	}
	p.held[snapshot] = name
	if err := os.CopyFS(p.content(name), os.DirFS(filepath.Join(p.dir, "snapshots",
		strings.ReplaceAll(snapshot, "/", ",")))); err != nil {
		return err
	}
	return filepath.WalkDir(p.content(name), func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSymlink == 0 { // PostgreSQL asks for its directory's mode
			mode := fs.FileMode(0o600)
			if d.IsDir() {
				mode = 0o700
			}
			err = os.Chmod(file, mode)
		}
		return errors.Join(err, os.Lchown(file, p.uid, p.gid))
	})
}

func (p *pools) get(kind, properties string, names []string) string {
	out := ""
	if kind == "snapshot" {
		for snapshot, clone := range p.held {
			set, _, _ := strings.Cut(snapshot, "@")
			if slices.Contains(names, set) {
				out += fmt.Sprintf("%s\tclones\t%s\t-\n", snapshot, clone)
			}
		}
		return out
	}
	for name, set := range p.sets {
		if properties == "all" && name != names[0] || !mountinfo.Within(name, names[0]) {
			continue
		}
		if set["mounted"] == "" {
			out += name + "\tmounted\tno\t-\n"
		}
		for property, value := range set {
			out += fmt.Sprintf("%s\t%s\t%s\tlocal\n", name, property, value)
		}
	}
	return out
}

func (p *pools) mount(name string) error {
	set := p.sets[name]
	if err := os.MkdirAll(set["mountpoint"], 0o755); err != nil {
		return err
	}
	if err := os.Remove(set["mountpoint"]); err != nil { // one that is not empty stays
		return err
	}
	set["mounted"] = "yes"
	return os.Rename(p.content(name), set["mountpoint"])
}

func (p *pools) unmount(name string) error {
	if p.busy--; p.busy >= 0 {
		return errors.New("cannot unmount: pool or dataset is busy")
	}
	set := p.sets[name]
	set["mounted"] = "no"
	return errors.Join(os.Rename(set["mountpoint"], p.content(name)), os.Mkdir(set["mountpoint"], 0o755))
}

func (p *pools) destroy(name string) error {
	for other := range p.sets {
		if strings.HasPrefix(other, name+"/") {
			return errors.New("filesystem has children")
		}
	}
	for snapshot := range p.held {
		if strings.HasPrefix(snapshot, name+"@") {
			return errors.New("filesystem has children: " + snapshot)
		}
	}
	if p.sets[name]["mounted"] == "yes" {
		return errors.New("dataset is busy: mounted")
	}
	delete(p.sets, name)
	for snapshot, clone := range p.held {
		if clone == name {
			p.held[snapshot] = ""
		}
	}
	return os.RemoveAll(p.content(name))
}

// fakeServer runs while it is told to, on the files of a copy.
type fakeServer struct {
	p       *Plan
	running *string // the data directory of the one that runs
	refuses error
}

func (s fakeServer) Running(context.Context) (bool, error) { return *s.running == s.p.DataDir, nil }

func (s fakeServer) Stop(context.Context) error {
	*s.running = ""
	return nil
}

func (s fakeServer) Start(context.Context) error {
	if *s.running != "" {
		return errors.New("one runs already")
	}
	for _, name := range []string{s.p.OptionFile(), s.p.DataDir, s.p.Run(), s.p.StartLog()} {
		if _, err := os.Stat(name); err != nil {
			return err
		}
	}
	if s.refuses != nil {
		return errors.Join(s.refuses, os.WriteFile(s.p.StartLog(), []byte("it has no room\n"), 0o600))
	}
	*s.running = s.p.DataDir
	return os.WriteFile(filepath.Join(s.p.DataDir, "written"), []byte("by the copy"), 0o600)
}

func (fakeServer) Answers(context.Context) error { return nil }

// rig is a Maker on a model with a snapshot of a MariaDB.
type rig struct {
	*Maker
	pools   *pools
	running string
	group   bool
	refuses error
}

// crash is what ends a call at a step.
type crash string

func newRig(t *testing.T) *rig {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("files of another user are made by root alone")
	}
	dir, err := os.MkdirTemp("", "bhc") // where any user gets to
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{pools: &pools{t: t, dir: dir, uid: 65534, gid: 65534, sets: map[string]map[string]string{
		"tank": {}, "tank/my": {},
		"tank/my/data": {"recordsize": "16384", "compression": "lz4"}, "tank/my/log": {"recordsize": "131072"}},
		held: map[string]string{"tank/my/data@s": "", "tank/my/log@s": ""}}}
	r.files(map[string]string{
		"tank,my,data@s/auto.cnf":           "[auto]\nserver-uuid=1\n",
		"tank,my,data@s/master.info":        "the origin's\n",
		"tank,my,data@s/shop/orders.ibd":    "pages",
		"tank,my,data@s/relay-bin.index":    "./relay-bin.000001\n",
		"tank,my,log@s/bin.index":           "/db/log/bin.000001\n/db/log/bin.000002\n",
		"tank,my,log@s/bin.000002":          "events",
		"tank,my,data@s/shop/reports.isl":   "/db/data/elsewhere/reports.ibd",
		"tank,my,data@s/mysql/db.frm":       "x",
		"tank,my,log@s/unrelated/index.txt": "/db/log/stays\n",
	})
	for name, target := range map[string]string{"inside": "/db/log/bin.000002", "near": "shop/orders.ibd",
		"certificate": "/etc/ssl/x.pem"} {
		if err := os.Symlink(target, filepath.Join(dir, "snapshots", "tank,my,data@s", name)); err != nil {
			t.Fatal(err)
		}
	}
	r.Maker = &Maker{Records: Records{filepath.Join(dir, "state")}, ZFS: zfs.Tools{ZFS: "zfs", Exec: r.pools.run},
		Server: func(p *Plan) zfslayout.Server { return fakeServer{p, &r.running, r.refuses} },
		Group: func(_ context.Context, _ *Plan, there bool) error {
			r.group = there
			return nil
		},
		Holders: func(context.Context, []string) ([]zfslayout.Holder, error) {
			return []zfslayout.Holder{{PID: 77, Name: "less"}}, nil
		},
		Mounts: func() (mountinfo.Mounts, error) {
			var mounts mountinfo.Mounts
			for name, set := range r.pools.sets {
				if set["mounted"] == "yes" {
					mounts = append(mounts, mountinfo.Mount{Point: set["mountpoint"], Root: "/", Source: name})
				}
			}
			return mounts, nil
		}}
	return r
}

func (r *rig) files(list map[string]string) {
	r.pools.t.Helper()
	for name, text := range list {
		name = filepath.Join(r.pools.dir, "snapshots", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755),
			os.WriteFile(name, []byte(text), 0o600)); err != nil {
			r.pools.t.Fatal(err)
		}
	}
}

// killed does a call that ends after so many steps; the step, or "" where it came to its end.
func (r *rig) killed(steps int, do func() error) (at string, err error) {
	defer func() {
		if v := recover(); v != nil {
			step, is := v.(crash)
			if !is {
				panic(v)
			}
			at = string(step)
		}
	}()
	r.step = func(what string) {
		if steps == 0 {
			panic(crash(what))
		}
		steps--
	}
	defer func() { r.step = nil }()
	return "", do()
}
