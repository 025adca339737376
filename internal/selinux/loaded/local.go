package loaded

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/remedy"
	"bulkhead/internal/selinux/verdict"
)

// Local answers what package remedy asks of a host. Ours says whether a setting, by its name, is one that bulkhead
// made.
type Local struct {
	Root  *sysroot.FS
	Found Host
	Ours  func(name string) bool
	// Files reads labels; nil is the kernel.
	Files sepolicy.Labeller
	// Instances are the databases of the host, whose files Proc has.
	Instances []engine.Instance
	Proc      procfs.FS
}

// Tree looks at a path and all below it on its file system. No part of the path may be a symbolic link: see Resolve.
func (l Local) Tree(ctx context.Context, at string) (remedy.Tree, error) {
	t := remedy.Tree{Has: map[string]string{}}
	f, asked := l.Found.Ask.Files.(*files)
	if !asked {
		return t, fmt.Errorf("which labels %s should have cannot be asked", at)
	}
	var lines []string
	types := map[string]string{} // that the file contexts give, by path
	owner, whole := uint32(0), true
	from := sepolicy.Labels{Host: sepolicy.Host{Root: l.Root, Files: l.Files}}
	mounted, err := from.Each(ctx, at, func(one sepolicy.File) error {
		full := path.Join(at, one.Path)
		kind, known := f.Expected(full, one.Class)
		whole = whole && known
		switch {
		case one.Path == "":
			owner = one.User
			t.Owned = slices.Contains(l.accounts(), int(owner))
			lines = append(lines, kind)
		case kind != types[path.Dir(full)]:
			lines = append(lines, kind+" "+strconv.Quote(one.Path))
		}
		if one.Class == "dir" {
			types[full] = kind
		}
		if c, ok := avc.ParseContext(one.Label); ok {
			t.Has[c.Type] = full
		}
		if kind != types[at] && one.Class != "sock_file" && one.Path != "" {
			t.Narrower = full
		}
		// A file of root's may lie between those of a database: its tools leave some.
		if one.User != owner && (one.User != 0 || one.Class == "dir") {
			t.Stranger = full
		}
		if one.Several {
			t.Linked = full
		}
		return nil
	})
	if len(mounted) > 0 {
		t.Mounted = mounted[0]
	}
	if whole {
		t.Labels = strings.Join(lines, "\n")
	}
	return t, err
}

// accounts are those that the databases of the host run as.
func (l Local) accounts() (uids []int) {
	pids := []int{}
	for _, i := range l.Instances {
		if !i.Container {
			pids = append(pids, i.Main.PID)
		}
	}
	procs, _ := l.Proc.Processes(procfs.Options{PIDs: pids}) // of one that has ended there is none
	for _, p := range procs {
		uids = append(uids, p.UID)
	}
	return uids
}

// Using are the databases whose data is at a path or below it, or that have files there open for writing. Those of
// containers see other paths.
func (l Local) Using(at string) (names []string) {
	below := func(name string) bool { return name == at || strings.HasPrefix(name, at+"/") }
	for _, i := range l.Instances {
		if i.Container {
			continue
		}
		data := i.DataDir
		if real, err := l.Root.EvalSymlinks(data); err == nil && data != "" {
			data = real
		}
		files, _ := l.Proc.WrittenFiles(i.Main.PID) // of one that has ended there are none
		if below(data) || slices.ContainsFunc(files, func(f procfs.WrittenFile) bool { return below(f.Path) }) {
			names = append(names, i.Name())
		}
	}
	return names
}

// Resolve has denials name files without symbolic links: the records of audit have them as a program wrote them.
func Resolve(root *sysroot.FS, denials []avc.Denial) {
	for i := range denials {
		d := &denials[i]
		if !path.IsAbs(d.Path) {
			continue
		}
		at := path.Clean(d.Path)
		if real, err := root.EvalSymlinks(at); err == nil && d.Class != "lnk_file" {
			d.Path = real
		} else if real, err := root.EvalSymlinks(path.Dir(at)); err == nil {
			d.Path = path.Join(real, path.Base(at))
		}
	}
}

// Domains are those of the databases of a host: of servers that run, and of programs of servers that denials are of
// where systemd starts them in that domain.
func Domains(root *sysroot.FS, ask verdict.Host, instances []engine.Instance, denials []avc.Denial) (found []string) {
	add := func(domain string) {
		if domain != "" && !verdict.Unconfined(domain) && !slices.Contains(found, domain) {
			found = append(found, domain)
		}
	}
	for _, i := range instances {
		text, err := selinux.Host{Root: root}.Process(i.Main.PID)
		if err != nil || i.Container {
			continue // it has ended, or its domain is that of all containers
		}
		if c, ok := avc.ParseContext(text); ok {
			add(c.Type)
		}
	}
	for _, d := range denials {
		if d.Exe == "" || slices.Contains(found, d.Source.Type) ||
			!recognise.MayServe(&procfs.Process{Exe: d.Exe, Args: []string{d.Exe}}) {
			continue
		}
		kind, known := ask.Files.Expected(d.Exe, "file")
		if known && ask.Starts.Domain("init_t", kind) == d.Source.Type {
			add(d.Source.Type)
		}
	}
	return found
}

// Module is the text of a module of bulkhead's that is installed.
func (l Local) Module(ctx context.Context, name string) (string, error) {
	return sepolicy.Modules{Host: sepolicy.Host{Root: l.Root}}.Read(ctx, name)
}

// Foreign is a local file context for a tree or for something below it that bulkhead did not make.
func (l Local) Foreign(tree string) (string, error) {
	from := selinux.Host{Root: l.Root}
	store, err := from.Store()
	if err != nil || store == "" {
		return "", err
	}
	texts, err := from.FileContexts(store)
	own := sepolicy.Expression(tree)
	stem := strings.TrimSuffix(own, "(/.*)?")
	for line := range strings.Lines(texts.Local) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] == own && l.Ours(sepolicy.Prefix+"context "+tree) {
			continue
		}
		rest, below := strings.CutPrefix(words[0], stem)
		if below && (rest == "" || rest[0] == '/' || rest[0] == '(' || rest[0] == '.') {
			return words[0], err
		}
	}
	return "", err
}
