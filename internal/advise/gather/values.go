package gather

import (
	"errors"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// because says in few words why something could not be read.
func because(err error) fact.Value {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fact.Unknown("this kernel has no such file here")
	case errors.Is(err, fs.ErrPermission):
		return fact.Unknown("only root may read it")
	case errors.Is(err, sysroot.ErrNoAnswer):
		return fact.Unknown("its file system does not answer")
	}
	return fact.Unknown("%v", sysroot.Cause(err))
}

func fstab(line int) string { return "/etc/fstab:" + strconv.Itoa(line) }

func number(h *host.Host, file string) fact.Value {
	n, err := h.Root.ReadInt(file)
	if err != nil {
		return because(err)
	}
	return fact.Known(n, file)
}

// process is the main process of an instance.
func process(h *host.Host, inst engine.Instance) (*procfs.Process, error) {
	list, err := h.Proc.Processes(procfs.Options{PIDs: []int{inst.Main.PID}})
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || list[0].ID != inst.Main {
		return nil, procfs.ErrExited
	}
	return &list[0], nil
}

// lister lists directories as a process sees them.
func lister(h *host.Host, pid int) func(dir string) []string {
	return func(dir string) []string {
		const most = 1000
		entries, err := recognise.SourceOf(h).ReadRootDir(pid, dir, most)
		if err != nil {
			return nil
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
}

// readAhead is that of the device right below a filesystem: the one that the kernel reads ahead from.
func readAhead(h *host.Host, l *blockdev.Layer) fact.Value {
	for _, below := range l.Below {
		if below.Device != nil && below.Role == "" {
			return number(h, path.Join("/sys/dev/block", below.Device.Disk, "queue/read_ahead_kb"))
		}
	}
	return fact.Unknown("no block device lies right below its file system")
}

// listedMount is the line of fstab(5) for a mount point: its source, its options, and where it stands.
func listedMount(table, point string) (source string, options []string, from string) {
	number := 0
	for line := range strings.Lines(table) {
		number++
		fields := strings.Fields(line)
		if len(fields) < 4 || strings.HasPrefix(fields[0], "#") || mountinfo.Unescape(fields[1]) != point {
			continue
		}
		return mountinfo.Unescape(fields[0]), strings.Split(fields[3], ","), fstab(number)
	}
	return "", []string{}, "/etc/fstab does not list it"
}
