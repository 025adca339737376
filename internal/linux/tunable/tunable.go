// Package tunable has the actuators of settings of the running kernel, and of the files that give the host the same
// settings when it boots: sysctls below /proc/sys (sysctl(8), sysctl.d(5)) and attributes below /sys (tmpfiles.d(5)).
// Its settings of services are those of package service, options of mounts those of package mounted, arguments of the
// kernel's command line those of package bootline, settings of database servers those of package optionfile, and local
// settings of SELinux those of package sepolicy.
//
// What is written outlives a boot, as the files set it again: changes of these kinds are undone in later boots, too.
package tunable

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/bootline"
	"bulkhead/internal/linux/tunable/hugepool"
	"bulkhead/internal/linux/tunable/mounted"
	"bulkhead/internal/linux/tunable/optionfile"
	"bulkhead/internal/linux/tunable/outside"
	"bulkhead/internal/linux/tunable/ownfile"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/linux/tunable/service"
)

// Lasting are the kinds of this package whose values outlive a boot.
var Lasting = append([]change.Kind{KindSysctl, KindAttribute, KindQueue, KindBootFile, service.KindSetting,
	service.KindLimit, mounted.KindListed, mounted.KindMounted, bootline.KindArgument, optionfile.Kind},
	sepolicy.Lasting...)

// own are settings that are no files of the kernel's below /proc/sys or /sys, by how their names begin.
var own = []struct {
	prefix string
	check  func(addr, value string) error
	target func(addr string) change.Target
}{
	{diskPrefix, checkQueue, queueTarget},
	{service.Prefix, service.Check, service.Target},
	{mounted.Prefix, mounted.Check, mounted.Target},
	{bootline.Prefix, bootline.Check, bootline.Target},
	{optionfile.Prefix, optionfile.Check, optionfile.Target},
	{sepolicy.Prefix, sepolicy.Check, sepolicy.Target},
}

// Grouped says whether a name is of a thing that has several settings, "disk vda" or "kernel", and how their names
// begin.
func Grouped(name string) (lead string, groups bool) {
	if name+" " == bootline.Prefix {
		return bootline.Prefix, true
	}
	for _, o := range own {
		if strings.HasPrefix(name, o.prefix) && o.prefix != bootline.Prefix && o.prefix != sepolicy.Prefix {
			return name + "/", true
		}
	}
	return "", false
}

// Sysctl is the target of a sysctl.
func Sysctl(name string) change.Target { return change.Target{Kind: KindSysctl, Addr: name} }

// Attribute is the target of a file below /sys.
func Attribute(path string) change.Target { return change.Target{Kind: KindAttribute, Addr: path} }

// Actuators are those of all kinds.
func (h Host) Actuators() change.Actuators {
	queues := &Queues{Host: h}
	all := service.Host{Root: h.Root, Dir: h.Dir, Systemd: h.Systemd, SetLimit: h.SetLimit}.Actuators()
	maps.Copy(all, change.Actuators{
		KindQueue: QueuesOfDisks{queues}, KindQueueByName: queues,
		KindSysctl:    Settings{Host: h, path: sysctlPath},
		KindAttribute: Settings{Host: h, path: attributePath},
		KindBootFile:  BootFiles{Host: h},
	})
	maps.Copy(all, h.ofBoot())
	return all
}

// ofBoot are the actuators whose values are written outside of the agent's sandbox.
func (h Host) ofBoot() change.Actuators {
	here := h.here()
	written := func(kind change.Kind) outside.Actuator {
		return outside.Actuator{Actuator: here[kind], Kind: kind, Caller: h.Outside}
	}
	all := change.Actuators{
		mounted.KindListed:  written(mounted.KindListed),
		mounted.KindMounted: written(mounted.KindMounted),
		bootline.KindArgument: outside.Loaded{Actuator: written(bootline.KindArgument),
			Reader: &bootLoader{h.bootline(), h.Outside}},
		optionfile.Kind: outside.Loaded{Actuator: written(optionfile.Kind), Reader: &rereader{h.options(), h.Outside}},
	}
	for kind := range h.sepolicy().Actuators() {
		all[kind] = sepolicy.Waiting{Actuator: written(kind), Host: h.sepolicy()}
	}
	if h.Systemd != nil && h.Root.Exists("/run/systemd/system") {
		all[mounted.KindListed] = outside.Loaded{Actuator: written(mounted.KindListed), Reader: fstabReader{h.Systemd}}
	}
	return all
}

func (h Host) bootline() bootline.Host {
	return bootline.Host{Root: h.Root, Dir: h.Dir, Run: h.UpdateLoader}
}

func (h Host) options() optionfile.Host {
	return optionfile.Host{Root: h.Root, Dir: h.Dir, Signal: h.Reread}
}

func (h Host) sepolicy() sepolicy.Host {
	return sepolicy.Host{Root: h.Root, Dir: h.Dir, Run: h.ChangePolicy, Files: h.Labels}
}

// here are those actuators as they write in this process.
func (h Host) here() change.Actuators {
	mounts := mounted.Host{Root: h.Root, Dir: h.Dir, Remount: h.Remount}
	all := h.sepolicy().Actuators()
	maps.Copy(all, change.Actuators{
		mounted.KindListed: mounted.Listed{Host: mounts}, mounted.KindMounted: mounted.Mounted{Host: mounts},
		bootline.KindArgument: bootline.Arguments{Host: h.bootline()},
		optionfile.Kind:       optionfile.Settings{Host: h.options()},
	})
	return all
}

// Has says whether the host has what a setting is kept in: a line of fstab for the mount, a boot loader whose tool is
// known. Of other settings only a plan can tell.
func (h Host) Has(ctx context.Context, name string) bool {
	t := Target(name)
	a, kept := h.here()[t.Kind]
	if !kept {
		return true
	}
	_, err := a.Read(ctx, t.Addr)
	return err == nil
}

// WriteHere writes a value in this process, for one in a sandbox that asked for it.
func (h Host) WriteHere(ctx context.Context, t change.Target, value string) error {
	switch t.Kind {
	case bootline.KindLoader:
		return h.bootline().Load(ctx)
	case optionfile.KindReread:
		return h.options().Reread(t.Addr)
	}
	a, err := h.here().Of(t)
	if err != nil {
		return err
	}
	return a.Write(ctx, t.Addr, value)
}

// bootLoader is the boot loader's own tool.
type bootLoader struct {
	bootline.Host
	caller outside.Caller
}

// Reload makes what the boot loader reads.
func (b *bootLoader) Reload(ctx context.Context, _ ...string) error {
	if b.caller != nil {
		written, err := b.caller.Write(ctx, change.Target{Kind: bootline.KindLoader}, "")
		if written || err != nil {
			return err
		}
	}
	return b.Load(ctx)
}

// rereader has PostgreSQL read its option files again.
type rereader struct {
	optionfile.Host
	caller outside.Caller
}

// Reload does so for the directories of the files.
func (r *rereader) Reload(ctx context.Context, addrs ...string) error {
	var dirs []string
	for _, addr := range addrs {
		if file := path.Dir(addr); path.Base(file) == optionfile.PostgreSQLFile {
			dirs = append(dirs, path.Dir(file))
		}
	}
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		if r.caller != nil {
			written, err := r.caller.Write(ctx, change.Target{Kind: optionfile.KindReread, Addr: dir}, "")
			if err != nil {
				return err
			}
			if written {
				continue
			}
		}
		if err := r.Reread(dir); err != nil {
			return err
		}
	}
	return nil
}

// fstabReader is systemd, which makes units of the lines of fstab.
type fstabReader struct{ service.Systemd }

// Reload has systemd read them.
func (f fstabReader) Reload(ctx context.Context, _ ...string) error { return f.Systemd.Reload(ctx) }

// Running is what runs with a setting, for one that only a file holds: the limit of the process of a service, the
// option of what is mounted.
func Running(t change.Target) (running change.Target, has bool) {
	if running, has = mounted.Running(t); has {
		return running, has
	}
	if running, has = sepolicy.Running(t); has {
		return running, has
	}
	return service.Running(t)
}

// InFile is bulkhead's own file that a setting is a line of, beside others; "" of other targets.
func InFile(t change.Target) string {
	switch t.Kind {
	case optionfile.Kind:
		return optionfile.File(t)
	case service.KindSetting:
		return service.File(service.Unit(t))
	case bootline.KindArgument:
		return bootline.File
	case mounted.KindListed:
		return mounted.UnitFile(mounted.Point(t)) // where fstab has no line for the mount
	}
	return ""
}

// IsForeign says whether a value is the text of a file that somebody else wrote.
func IsForeign(value string) bool { return strings.HasPrefix(value, ownfile.AsLeft) }

// Counts says in words from when on a value counts; "" is at once, or said of another target.
func Counts(t change.Target, value string) string {
	if t.Kind == bootline.KindArgument {
		return "it counts when the host boots next; bulkhead does not boot it"
	}
	if IsPool(t) {
		return "a database takes huge pages when it starts, and keeps those that it has until it ends. Where the " +
			"kernel gives too few it is asked to put memory together (vm.compact_memory), which may take seconds"
	}
	if t.Kind == sepolicy.KindBoolean {
		return "when it is taken back: semanage can take only all local booleans out of the store at once, so where " +
			"there are others this one stays there as \"off\", as it was by the policy's default"
	}
	return cmp.Or(optionfile.Counts(t, value), service.Counts(t))
}

// IsPool says whether a target is a pool of huge pages, of which a database takes some when it starts.
func IsPool(t change.Target) bool {
	_, is := poolOf(t)
	return is
}

func poolOf(t change.Target) (file string, is bool) {
	switch t.Kind {
	case KindAttribute:
		file = t.Addr
	case KindSysctl:
		file, _ = sysctlPath(t.Addr) // of no name it is none
	}
	return file, hugepool.Is(file)
}

// PoolsOverlap says whether two targets are pools of huge pages of which one has pages of the other: that of all nodes
// and that of a node. Only one of them can hold what it is to. Page is the default size of huge pages, in bytes.
func PoolsOverlap(a, b change.Target, page int64) bool {
	x, isX := poolOf(a)
	y, isY := poolOf(b)
	return isX && isY && hugepool.Overlap(x, y, page)
}

// Waits says whether a setting counts only after the next boot.
func Waits(root *sysroot.FS, t change.Target, value string) bool {
	return bootline.Waits(root, t, value)
}

// Name is that of the setting that a target is of; its address where that is the name.
func Name(t change.Target) string {
	prefix := map[change.Kind]string{
		KindQueue: diskPrefix, KindQueueByName: diskPrefix, service.KindSetting: service.Prefix,
		service.KindLimit: service.Prefix, mounted.KindListed: mounted.Prefix, mounted.KindMounted: mounted.Prefix,
		bootline.KindArgument: bootline.Prefix, optionfile.Kind: optionfile.Prefix,
	}[t.Kind]
	return cmp.Or(prefix, sepolicy.NamePrefix(t.Kind)) + t.Addr
}

// Check says what is wrong with a setting: its name is that of a sysctl, a path below /sys, "disk DISK/FILE",
// "unit SERVICE/SETTING", "mount PLACE/OPTION", "kernel ARGUMENT", "option FILE/SETTING" or "selinux KIND WHAT", and
// its value is one line of printable ASCII. nil is nothing.
func Check(name, value string) error {
	for _, o := range own {
		if addr, is := strings.CutPrefix(name, o.prefix); is {
			return o.check(addr, value)
		}
	}
	find := sysctlPath
	if strings.HasPrefix(name, "/") {
		find = attributePath
	}
	if _, err := find(name); err != nil {
		return err
	}
	switch {
	case strings.TrimSpace(value) != value || value == "":
		return fmt.Errorf("%s has no value", name)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' || r == '\\' }):
		return fmt.Errorf("%s: the value %q has characters that no setting of the kernel has", name, value)
	}
	return nil
}

// ShortNames are names by which people know settings.
var ShortNames = map[string]string{
	"thp":        "/sys/kernel/mm/transparent_hugepage/enabled",
	"thp_defrag": "/sys/kernel/mm/transparent_hugepage/defrag",
}

// Transparent are the files that switch transparent huge pages on and off: those of memory of a process, and of shared
// memory.
var Transparent = []string{ShortNames["thp"], "/sys/kernel/mm/transparent_hugepage/shmem_enabled"}

// Canonical is the one name of a setting that has several: of short names the path, and dots in a sysctl's name where
// it can have them. What is no name stays as it is.
func Canonical(name string) string {
	if path, short := ShortNames[name]; short {
		return path
	}
	for _, o := range own {
		if of, is := strings.CutPrefix(name, o.prefix); is {
			return o.prefix + mounted.Clean(strings.TrimSpace(of))
		}
	}
	file, err := sysctlPath(name)
	switch {
	case strings.HasPrefix(name, "/") || err != nil:
		return name
	case strings.Contains(file, "."):
		return strings.TrimPrefix(file, "/proc/sys/")
	}
	return strings.ReplaceAll(strings.TrimPrefix(file, "/proc/sys/"), "/", ".")
}

// Same compares values of a target: those of settings by their words, as the kernel puts tabs between them.
func Same(t change.Target, want, got string) bool {
	if same, is := sepolicy.Same(t, want, got); is {
		return same
	}
	switch t.Kind {
	case KindBootFile, service.KindSetting, mounted.KindListed, mounted.KindMounted, bootline.KindArgument,
		optionfile.Kind:
		return want == got
	case service.KindLimit:
		return service.Limits{}.Same(t.Addr, want, got)
	case KindQueue, KindQueueByName:
		return sameQueue(want, got)
	}
	return Settings{}.Same(t.Addr, want, got)
}

// Target is that of a setting by its name.
func Target(name string) change.Target {
	for _, o := range own {
		if addr, is := strings.CutPrefix(name, o.prefix); is {
			return o.target(addr)
		}
	}
	if strings.HasPrefix(name, "/") {
		return Attribute(name)
	}
	return Sysctl(name)
}
