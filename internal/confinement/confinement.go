// Package confinement says what SELinux and AppArmor let the databases of a host do: the state of both, the domain and
// the profile of each process, and what of the paths and ports that a database is set to use does not fit. It is what
// `selinux check` prints, and changes nothing.
//
// Of reads a host once; what cannot be read is said in words. A path is looked at as its server sees it.
package confinement

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/advise/gather/settings"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/engine/options"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/apparmor"
	"bulkhead/internal/linux/audit"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/selinux/check"
	"bulkhead/internal/selinux/loaded"
	"bulkhead/internal/selinux/places"
	"bulkhead/internal/selinux/policydb"
)

// distribution is the priority at which distributions install modules.
const distribution = 100

// Of looks at a host.
func Of(ctx context.Context, h *host.Host, instances []engine.Instance, o Options) (*Report, error) {
	o.defaults(h)
	r := &Report{Instances: []Instance{}, Findings: []check.Finding{}, Rules: []Rule{}, NotAsked: []string{}}
	from := selinux.Host{Root: h.Root, Labels: o.Labels}
	asked := r.selinux(from, h.Root)
	var err error
	if r.AppArmor, err = (apparmor.Host{Root: h.Root}).Enabled(); err != nil {
		r.not("whether AppArmor is on: %v", sysroot.Cause(err))
	}
	if !r.Confines() {
		return r, nil
	}
	if status, err := o.Audit(); err != nil {
		r.Audit.Trouble = err.Error()
	} else {
		r.Audit.Status = &status
	}
	procs, err := h.Proc.Processes(procfs.Options{})
	if err != nil && !errors.Is(err, procfs.ErrHidden) {
		return nil, err
	}
	for _, inst := range instances {
		if o.Instance != "" && inst.Name() != o.Instance {
			continue
		}
		l := &look{Report: r, host: h, from: from, asked: asked, procs: procs, inst: inst, options: o,
			found: Instance{Name: inst.Name(), PID: inst.Main.PID, Booleans: []policydb.Boolean{},
				NotAsked: []string{}}}
		if err := l.all(ctx); errors.Is(err, procfs.ErrExited) {
			continue
		} else if err != nil {
			return nil, err
		}
		r.Instances = append(r.Instances, l.found)
	}
	r.denials(h, o)
	slices.SortStableFunc(r.Findings, func(a, b check.Finding) int { return first(b.Denied) - first(a.Denied) })
	return r, nil
}

func first(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (o *Options) defaults(h *host.Host) {
	captured := func() error { return errors.New("the host is captured") }
	if o.Audit == nil {
		o.Audit = audit.Of
		if !h.Root.Live() {
			o.Audit = func() (audit.Status, error) { return audit.Status{}, captured() }
		}
	}
	if o.KernelLog == nil {
		o.KernelLog = apparmor.KernelLog
		if !h.Root.Live() {
			o.KernelLog = func() ([]byte, error) { return nil, captured() }
		}
	}
	if o.Missing == nil {
		o.Missing = apparmor.Host{Root: h.Root}.Missing
	}
}

// selinux reads the state; the host that it gives has what can be asked.
func (r *Report) selinux(from selinux.Host, root *sysroot.FS) loaded.Host {
	s := &r.SELinux
	s.Permissive, s.Modules = []string{}, []selinux.Module{}
	store, err := from.Store()
	if err != nil {
		r.not("the configuration of SELinux: %v", sysroot.Cause(err))
	}
	s.Wanted, _ = from.Wanted()
	if store != "" {
		s.Type = path.Base(store)
	}
	if !from.Loaded() {
		s.Mode = NotThere
		if s.Wanted != "" || store != "" {
			s.Mode = Off
		}
		return loaded.Host{}
	}
	asked := loaded.Of(root)
	s.Mode = asked.State
	r.NotAsked = append(r.NotAsked, asked.Missing...)
	if p, is := asked.Ask.Policy.(*policydb.Policy); is {
		s.Version, s.Permissive = p.Version, p.Permissive()
	}
	if s.Unknown, err = from.Unknown(); err != nil {
		r.not("what the kernel does with permissions that its policy does not know: %v", sysroot.Cause(err))
	}
	modules, err := from.Modules(store)
	switch {
	case store == "":
	case errors.Is(err, fs.ErrNotExist):
		r.not("modules of the policy: this host keeps none of %s", store)
	case errors.Is(err, fs.ErrPermission):
		r.not("modules of the policy: only root may read them; run it with sudo")
	case err != nil:
		r.not("modules of the policy: %v", sysroot.Cause(err))
	}
	for _, m := range modules {
		if m.Priority != distribution {
			s.Modules = append(s.Modules, m)
		}
	}
	return asked
}

func (l *look) all(ctx context.Context) error {
	at := slices.IndexFunc(l.procs, func(p procfs.Process) bool { return p.ID == l.inst.Main })
	if at < 0 {
		return procfs.ErrExited
	}
	l.process = &l.procs[at]
	if l.inst.Container {
		l.not("paths and ports: it runs in a container, whose labels the container's runtime gives")
		l.selinux(nil, nil)
		return nil
	}
	paths, ports := l.places(ctx)
	l.selinux(paths, ports)
	if l.AppArmor {
		l.apparmor(paths)
	}
	return nil
}

// places are those of its settings, in order of trust: what the server says, what it has open, its arguments, its
// option files.
func (l *look) places(ctx context.Context) ([]places.Place, []places.Port) {
	names := places.Settings(l.inst.Engine)
	login := l.options.Logins[l.inst.Name()]
	told, trouble := settings.Of(ctx, l.host, l.inst, l.process, login, names...)
	if trouble != nil {
		l.not("%v", trouble)
	}
	read := told
	if login != nil {
		read, _ = settings.Of(ctx, l.host, l.inst, l.process, nil)
	}
	known, why := 0, error(nil)
	paths, ports := places.Of(l.inst, func(name string) (value, from string) {
		s, err := told.Get(name)
		if err != nil {
			s, err = read.Get(name)
		}
		if err != nil {
			why = err
			return "", ""
		}
		known++
		return s.Value, strings.TrimSuffix(s.From, ":")
	})
	if known == 0 && why != nil {
		l.not("none of its settings of paths and ports is known: %v", why)
	}
	source := recognise.SourceOf(l.host)
	if l.inst.Engine == engine.MySQL {
		for _, name := range (options.Reader{Source: source}).MySQL(l.process).Files.Includes {
			paths = append(paths, places.Place{Setting: "!include", From: l.inst.Config, Kind: places.Config,
				Path: name})
		}
	}
	kept, err := datafiles.Of(l.inst, l.procs, source)
	if err != nil {
		l.not("open files: %v", sysroot.Cause(err))
	}
	for _, f := range kept {
		// What is below a place that is known goes with it, but for a link that leads elsewhere.
		if f.Kind != datafiles.Tablespace && within(paths, f.Path) {
			continue
		}
		kind := places.Data
		if f.Kind == datafiles.Temp {
			kind = places.Temporary
		}
		paths = append(paths, places.Place{Setting: string(f.Kind), From: f.How, Kind: kind, Path: f.Path})
	}
	return append(paths, l.open(paths)...), ports
}

// within says whether a path is a place or below one.
func within(all []places.Place, name string) bool {
	return slices.ContainsFunc(all, func(p places.Place) bool {
		return mountinfo.Within(name, p.Path)
	})
}

// open are files that are open for writing and not below a place that is known.
func (l *look) open(known []places.Place) (more []places.Place) {
	files, err := l.host.Proc.WrittenFiles(l.inst.Main.PID)
	if err != nil {
		return nil // said of the open files already
	}
	for _, f := range files {
		if !within(known, f.Path) && !pseudo(f.Path) {
			more = append(more, places.Place{Setting: "open for writing", From: "open files", Kind: places.Log,
				Path: f.Path})
		}
	}
	return more
}

// pseudo says whether a path is of no file that a label could be set on.
func pseudo(name string) bool {
	return slices.ContainsFunc([]string{"dev", "proc", "sys", "memfd:", "SYSV", "[", "anon_hugepage"},
		func(p string) bool {
			return strings.HasPrefix(name, "/"+p)
		})
}

// selinux holds it against policy and file contexts.
func (l *look) selinux(paths []places.Place, ports []places.Port) {
	p, is := l.asked.Ask.Policy.(*policydb.Policy)
	if !is || l.asked.Ask.Files == nil {
		return
	}
	s := check.Server{Name: l.found.Name, Engine: l.inst.Engine, PID: l.inst.Main.PID, Program: l.process.Exe,
		Places: paths, Ports: ports, Entries: l.entries}
	for _, m := range l.inst.Members {
		context, err := l.from.Process(m.ID.PID)
		if err != nil && sysroot.IsGone(err) {
			continue
		}
		s.Processes = append(s.Processes, check.Process{PID: m.ID.PID, Part: m.Part, Context: context})
	}
	l.found.SELinux = check.Host{Policy: p, Transitions: p, Contexts: l.asked.Ask.Files, Files: l.from}.Server(s)
	l.Findings = append(l.Findings, l.found.SELinux.Findings...)
	if of := p.BooleansOf(l.found.SELinux.Domain); of != nil {
		l.found.Booleans = of
	}
}

// mostEntries is how much of a directory of data is looked at.
const mostEntries = 500

func (l *look) entries(dir string) (names []string) {
	entries, err := l.host.Proc.ReadRootDir(l.inst.Main.PID, dir, mostEntries)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
