package tunable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/bootline"
	"bulkhead/internal/linux/tunable/hugepool"
	"bulkhead/internal/linux/tunable/outside"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/linux/tunable/service"
)

// Kinds of settings of the running kernel.
const (
	// KindSysctl is a sysctl. Its address is the name with dots, "vm.swappiness"; a name with a slash has it where
	// sysctl.d(5) has one: "net/ipv4/conf/eth0.100/rp_filter".
	KindSysctl change.Kind = "sysctl"
	// KindAttribute is a file below /sys; its address is the path.
	KindAttribute change.Kind = "sysfs"
)

// Host says where the settings are.
type Host struct {
	Root *sysroot.FS
	// Dir is the directory to write below: "/", or that of a host that a test made. "" is a captured host, which cannot
	// be changed.
	Dir string
	// Systemd and SetLimit are those of service.Host.
	Systemd  service.Systemd
	SetLimit func(pid, resource int, soft, hard uint64) error
	// Outside writes what the agent's sandbox forbids; nil is nobody.
	Outside outside.Caller
	// Remount and UpdateLoader are those of mounted.Host and Run of bootline.Host.
	Remount      func(point string, flags uintptr, data string) error
	UpdateLoader func(ctx context.Context, program string, args ...string) error
	// Reread is Signal of optionfile.Host.
	Reread func(pid int) error
	// ChangePolicy and Labels are Run and Files of sepolicy.Host.
	ChangePolicy func(ctx context.Context, program string, args ...string) error
	Labels       sepolicy.Labeller
}

// Settings is the actuator of KindSysctl and of KindAttribute.
type Settings struct {
	Host
	path func(addr string) (string, error)
}

// sysctlName is a name of a sysctl.
var sysctlName = regexp.MustCompile(`^[A-Za-z0-9_-]+([./][A-Za-z0-9_:@*-]+)+$`)

// sysctlPath is the file of a sysctl. The first separator says which one separates, as in sysctl.d(5).
func sysctlPath(name string) (string, error) {
	separators := strings.IndexAny(name, "./")
	if !sysctlName.MatchString(strings.ReplaceAll(name, "/", ".")) || separators < 0 {
		return "", fmt.Errorf("%q is not the name of a sysctl", name)
	}
	if name[separators] == '.' {
		name = strings.NewReplacer(".", "/", "/", ".").Replace(name)
	}
	file := path.Join("/proc/sys", name)
	if !strings.HasPrefix(file, "/proc/sys/") {
		return "", fmt.Errorf("%q is not the name of a sysctl", name)
	}
	return file, nil
}

// attributeName is a path below /sys without what tmpfiles.d(5) takes for a pattern or a specifier.
var attributeName = regexp.MustCompile(`^/sys(/[A-Za-z0-9_.:@,+-]+)+$`)

func attributePath(addr string) (string, error) {
	if !attributeName.MatchString(addr) || path.Clean(addr) != addr {
		return "", fmt.Errorf("%q is not a path below /sys", addr)
	}
	if strings.HasPrefix(addr, "/sys/fs/cgroup/") {
		return "", fmt.Errorf("%q is a file of a group: a policy's groups have the limits", addr)
	}
	return addr, nil
}

// twins are sysctls of which only one counts: the kernel sets the other to 0 (Documentation/admin-guide/sysctl/vm.rst),
// and takes no 0 for them.
var twins = map[string]string{
	"vm.dirty_bytes": "vm.dirty_ratio", "vm.dirty_ratio": "vm.dirty_bytes",
	"vm.dirty_background_bytes": "vm.dirty_background_ratio", "vm.dirty_background_ratio": "vm.dirty_background_bytes",
	"vm.overcommit_kbytes": "vm.overcommit_ratio", "vm.overcommit_ratio": "vm.overcommit_kbytes",
}

// Twin is the setting that does not go with this one, "" for most: the sysctl that the kernel sets to 0 when this one
// is written; and of the pool of huge pages now and at boot the other, since the sysctl comes after the boot.
func Twin(name string) string {
	switch name {
	case hugepool.Sysctl:
		return PoolAtBoot
	case PoolAtBoot:
		return hugepool.Sysctl
	}
	return twins[name]
}

// PoolAtBoot is the argument of the kernel for the pool of huge pages of the default size: "139", or by node
// "0:512,1:256" (5.16).
const PoolAtBoot = bootline.Prefix + "hugepages"

// Read gives the text of the file without the last newline, and of a choice ("always [madvise] never") the word that is
// chosen. A sysctl that does not count because its twin does has that as value: "vm.dirty_ratio=20" is what
// vm.dirty_bytes holds then.
func (s Settings) Read(_ context.Context, addr string) (string, error) {
	value, err := s.read(addr)
	if twin := twins[addr]; err == nil && twin != "" && value == "0" {
		other, err := s.read(twin)
		if err == nil && other != "0" {
			value = twin + "=" + other
		}
	}
	return value, err
}

func (s Settings) read(addr string) (string, error) {
	file, err := s.path(addr)
	if err != nil {
		return "", err
	}
	if hugepool.Is(file) {
		pages, err := hugepool.Read(s.Root, file)
		if err != nil {
			return "", failed("read", file, err)
		}
		return strconv.FormatInt(pages, 10), nil
	}
	text, err := s.Root.ReadText(file)
	if err != nil {
		return "", failed("read", file, err)
	}
	return chosen(text), nil
}

// chosen is the word in brackets of a choice, or the whole text.
func chosen(text string) string {
	words := strings.Fields(text)
	at := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "[") && strings.HasSuffix(w, "]") })
	if at < 0 || len(words) == 1 {
		return text
	}
	return strings.Trim(words[at], "[]")
}

// Write writes the file, which has to be there.
// A pool of huge pages grows in steps: see package hugepool.
func (s Settings) Write(ctx context.Context, addr, value string) error {
	if twin, other, is := strings.Cut(value, "="); is && twins[addr] == twin {
		addr, value = twin, other
	}
	file, err := s.path(addr)
	if err != nil {
		return err
	}
	if s.Dir == "" {
		return change.ErrCaptured
	}
	if pages, err := strconv.ParseInt(value, 10, 64); err == nil && hugepool.Is(file) {
		return hugepool.Pool{Root: s.Root, File: file, Write: s.write}.Set(ctx, pages)
	}
	return s.write(file, value)
}

// write writes a file of the kernel's.
func (h Host) write(file, value string) error {
	f, err := os.OpenFile(filepath.Join(h.Dir, file), os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.WriteString(cmp.Or(value, "\n")) // the kernel keeps what it has when nothing is written
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return failed(fmt.Sprintf("write %q to", value), file, err)
	}
	return nil
}

// Same compares words: the kernel puts tabs between those of net.ipv4.tcp_rmem.
func (Settings) Same(_, want, got string) bool {
	return slices.Equal(strings.Fields(want), strings.Fields(got))
}

// Undo gives a setting its old value back.
func (s Settings) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, s, c)
}

// AfterBoot is the change: the file that came with it may have set the value again.
func (Settings) AfterBoot(c change.Change) change.Change { return c }

func failed(verb, file string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		err = change.Gone("this kernel has no such setting")
	}
	switch {
	case errors.Is(err, unix.EPERM): // root may open it, so that the kernel asks for a capability when it is written
		err = fmt.Errorf("%w; the agent's unit may lack CAP_SYS_ADMIN, which the kernel asks for here: add it in "+
			"`systemctl edit bulkhead`, CapabilityBoundingSet=CAP_SYS_ADMIN", unwrapped(err))
	case errors.Is(err, unix.EROFS):
		err = fmt.Errorf("%w; where the directory was missing when the agent started, its unit may not write it: "+
			"`mkdir -p %s && systemctl restart bulkhead`", unwrapped(err), path.Dir(file))
	}
	return fmt.Errorf("%s %s: %w", verb, file, unwrapped(err))
}

// unwrapped is the cause of an error that names a file already.
func unwrapped(err error) error {
	if wrapped := (*fs.PathError)(nil); errors.As(err, &wrapped) {
		return wrapped.Err
	}
	return err
}
