package zfslayout

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/treecopy"
	"bulkhead/internal/linux/zfs"
)

// pools is a model of zfs(8) and zpool(8). What a file system holds lies in a directory; mounting it puts that in place
// of the directory that it is mounted on, and keeps the other one.
type pools struct {
	t    *testing.T
	dir  string
	sets map[string]map[string]string // properties set on each file system, and "mounted"
	held map[string]bool              // snapshots by name
	more mountinfo.Mounts             // what somebody else mounted
}

func newPools(t *testing.T, dir string) *pools {
	p := &pools{t: t, dir: dir, sets: map[string]map[string]string{}, held: map[string]bool{}}
	for _, d := range []string{"content", "under"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

func (p *pools) tools() zfs.Tools { return zfs.Tools{ZFS: "zfs", Zpool: "zpool", Exec: p.run} }

func (p *pools) file(kind, set string) string {
	return filepath.Join(p.dir, kind, strings.ReplaceAll(set, "/", ","))
}

// run does one call.
func (p *pools) run(program string, args ...string) (string, error) {
	verb, rest, options := args[0], args[1:], map[string]string{}
	for len(rest) > 1 && strings.HasPrefix(rest[0], "-") {
		switch rest[0] {
		case "-o", "-O":
			name, value, _ := strings.Cut(rest[1], "=")
			options[name] = value
			rest = rest[2:]
		case "-t", "-d":
			options[rest[0]] = rest[1]
			rest = rest[2:]
		default:
			rest = rest[1:]
		}
	}
	switch program + " " + verb {
	case "zpool list":
		names := ""
		for name := range p.sets {
			if !strings.Contains(name, "/") {
				names += name + "\n"
			}
		}
		return names, nil
	case "zpool create":
		if p.sets[rest[0]] != nil {
			return "", errors.New("pool exists")
		}
		p.sets[rest[0]] = options
		return "", nil
	case "zfs create":
		return "", p.create(rest[0], options)
	case "zfs get":
		return p.get(options["-t"], strings.Split(rest[0], ","), rest[1])
	case "zfs set":
		name, value, _ := strings.Cut(rest[0], "=")
		return "", p.set(rest[1], name, value)
	case "zfs mount":
		return "", p.mount(rest[0])
	case "zfs unmount":
		return "", p.unmount(rest[0])
	case "zfs destroy":
		return "", p.destroy(rest[0])
	}
	return "", fmt.Errorf("the model does not know %s %q", program, args)
}

func (p *pools) create(name string, options map[string]string) error {
	if p.sets[name] != nil || p.sets[filepath.Dir(name)] == nil {
		return fmt.Errorf("create %s: exists, or its parent does not", name)
	}
	p.sets[name] = options
	return os.Mkdir(p.file("content", name), 0o700)
}

func (p *pools) get(kind string, properties []string, of string) (string, error) {
	out := ""
	if kind == "snapshot" {
		for name := range p.held {
			if strings.HasPrefix(name, of+"@") {
				out += name + "\tcreation\t1\t-\n"
			}
		}
		return out, nil
	}
	if p.sets[of] == nil {
		return "", errors.New("dataset does not exist")
	}
	if slices.Equal(properties, []string{"all"}) {
		properties = []string{Owner}
	}
	for name, set := range p.sets {
		if name != of && !strings.HasPrefix(name, of+"/") {
			continue
		}
		for _, property := range properties {
			value, source := set[property], "local"
			switch {
			case property == "mounted" && value == "":
				value, source = "no", "-"
			case value == "":
				value, source = "-", "-"
			}
			out += strings.Join([]string{name, property, value, source}, "\t") + "\n"
		}
	}
	return out, nil
}

func (p *pools) set(name, property, value string) error {
	set := p.sets[name]
	if set == nil {
		return errors.New("dataset does not exist")
	}
	if property == "mountpoint" && set["mounted"] == "yes" && set[property] != value {
		return errors.New("the model does not move a mount")
	}
	set[property] = value
	return nil
}

func (p *pools) mount(name string) error {
	set := p.sets[name]
	point := set["mountpoint"]
	if set == nil || set["mounted"] == "yes" || !filepath.IsAbs(point) || set["canmount"] == "off" {
		return fmt.Errorf("mount %s: cannot be", name)
	}
	if err := os.MkdirAll(point, 0o755); err != nil {
		return err
	}
	set["mounted"] = "yes"
	err := os.Remove(point)
	if set["under"] = ""; errors.Is(err, fs.ErrPermission) { // no file can be made in it
		set["under"] = "immutable"
		err = errors.Join(treecopy.Immutable(point, false), os.Remove(point))
	}
	return errors.Join(err, os.Rename(p.file("content", name), point))
}

// mounts is what the kernel would say.
func (p *pools) mounts() (mountinfo.Mounts, error) {
	list := slices.Clone(p.more)
	for name, set := range p.sets {
		if set["mounted"] == "yes" {
			list = append(list, mountinfo.Mount{ID: 100 + len(list), Parent: 1, Dev: "0:" + strconv.Itoa(100+len(list)),
				Root: "/", Point: set["mountpoint"], Type: "zfs", Source: name})
		}
	}
	return list, nil
}

func (p *pools) unmount(name string) error {
	set := p.sets[name]
	if set["mounted"] != "yes" {
		return fmt.Errorf("unmount %s: not mounted", name)
	}
	set["mounted"] = ""
	point := set["mountpoint"]
	err := errors.Join(os.Rename(point, p.file("content", name)), os.Mkdir(point, 0))
	if set["under"] == "immutable" {
		err = errors.Join(err, treecopy.Immutable(point, true))
	}
	return err
}

func (p *pools) destroy(name string) error {
	for other := range p.sets {
		if strings.HasPrefix(other, name+"/") {
			return errors.New("filesystem has children")
		}
	}
	for snapshot := range p.held {
		if strings.HasPrefix(snapshot, name+"@") {
			return errors.New("filesystem has snapshots")
		}
	}
	if p.sets[name]["mounted"] == "yes" {
		if err := p.unmount(name); err != nil {
			return err
		}
	}
	delete(p.sets, name)
	return os.RemoveAll(p.file("content", name))
}

// reboot is what a crash and a start of the host do to mounts.
func (p *pools) reboot() {
	for _, mounting := range []bool{false, true} {
		for name, set := range p.sets {
			var err error
			switch {
			case !mounting && set["mounted"] == "yes":
				err = p.unmount(name)
			case mounting && set["canmount"] == "on" && filepath.IsAbs(set["mountpoint"]):
				err = p.mount(name)
			}
			if err != nil {
				p.t.Fatal(err)
			}
		}
	}
}

// database is a model of a server with InnoDB: each commit is in its table and in its redo log, and it does not start
// on files that do not belong together.
type database struct {
	t         *testing.T
	data, cnf string
	running   bool
	committed int // commits that were acknowledged
	broken    bool
	stops     int
	slow      bool // its next stop is not over when nobody waits any more, and ends before the next question
	mute      int  // so many questions get no answer
}

func (d *database) Running(context.Context) (bool, error) { return d.running, nil }

func (d *database) Stop(context.Context) error {
	d.stops++
	if d.slow {
		return errors.New("it is still there")
	}
	d.running = false
	return nil
}

func (d *database) Answers(context.Context) error {
	if d.slow {
		d.slow, d.running = false, false
	}
	if d.mute > 0 {
		d.mute--
		return errors.New("no answer")
	}
	if !d.running {
		return errors.New("it does not run")
	}
	return nil
}

// redo is the directory that the option file names.
func (d *database) redo() string {
	text, err := os.ReadFile(d.cnf)
	if err != nil {
		d.t.Fatal(err)
	}
	dir := d.data
	for line := range strings.Lines(string(text)) {
		if _, value, is := strings.Cut(line, "innodb_log_group_home_dir = "); is {
			dir = strings.TrimSpace(value)
		}
	}
	return dir
}

func (d *database) files() [2]string {
	return [2]string{filepath.Join(d.data, "shop", "t.ibd"), filepath.Join(d.redo(), "ib_logfile0")}
}

// Start starts it and commits once. Files that are not there, or are of different times, do not start.
func (d *database) Start(context.Context) error {
	var counts [2]int
	for i, name := range d.files() {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		counts[i] = len(text)
	}
	if counts[0] != counts[1] || counts[0] != d.committed {
		d.t.Errorf("started on files that do not belong together, or are old: %v, %d were acknowledged", counts,
			d.committed)
		return errors.New("corrupt")
	}
	if d.broken {
		return errors.New("broken")
	}
	d.running = true
	d.commit()
	return nil
}

func (d *database) commit() {
	for _, name := range d.files() {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_APPEND, 0)
		if err == nil {
			_, err = f.WriteString("x")
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			d.t.Fatal(err)
		}
	}
	d.committed++
}
