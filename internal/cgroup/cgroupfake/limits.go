package cgroupfake

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
)

// pidsFiles are those of the pids controller, the same on both versions.
func pidsFiles() []*file {
	var files []*file
	for _, version := range []int{1, 2} {
		files = append(files,
			&file{name: "pids.max", version: version, controller: "pids", place: notRoot, initial: "max",
				write: func(_ *Kernel, g *group, text string) error {
					text = strings.TrimSpace(text)
					n, err := parseSigned(text)
					switch {
					case text == "max":
					case err != nil:
						return syscall.EINVAL
					case n < 0 || n > 4<<20: // PID_MAX_LIMIT
						return syscall.EINVAL
					default:
						text = fmt.Sprint(n)
					}
					g.values["pids.max"] = text
					return nil
				}},
			count("pids.current", version, "pids",
				func(k *Kernel, g *group) int64 { return k.tasksBelow(g) }).at(notRoot),
			&file{name: "pids.events", version: version, controller: "pids", place: notRoot,
				read: func(_ *Kernel, g *group) string { return fmt.Sprintf("max %d", g.refused) }},
		)
	}
	return files
}

// freezerFiles are v1's freezer. A group is frozen by itself or by an ancestor.
func freezerFiles() []*file {
	yes := func(b bool) int64 {
		if b {
			return 1
		}
		return 0
	}
	return []*file{
		{name: "freezer.state", version: 1, controller: "freezer", place: notRoot, initial: "THAWED",
			read: func(k *Kernel, g *group) string {
				switch {
				case k.frozen(g):
					return "FROZEN"
				case freezing(g):
					return "FREEZING"
				}
				return "THAWED"
			},
			write: func(_ *Kernel, g *group, text string) error {
				text = strings.TrimSpace(text)
				if text != "FROZEN" && text != "THAWED" {
					return syscall.EINVAL
				}
				g.values["freezer.state"] = text
				return nil
			}},
		count("freezer.self_freezing", 1, "freezer", func(_ *Kernel, g *group) int64 {
			return yes(g.values["freezer.state"] == "FROZEN")
		}).at(notRoot),
		count("freezer.parent_freezing", 1, "freezer", func(_ *Kernel, g *group) int64 {
			return yes(freezing(g.parent))
		}).at(notRoot),
	}
}

// freezing says whether g or an ancestor was told to stop.
func freezing(g *group) bool {
	return slices.ContainsFunc(g.ancestors(), func(up *group) bool {
		return up.values["freezer.state"] == "FROZEN" || up.values["cgroup.freeze"] == "1"
	})
}

// frozen says whether it did, all processes below included.
func (k *Kernel) frozen(g *group) bool {
	if !freezing(g) {
		return false
	}
	stopped := true
	g.each(func(g *group) {
		for _, t := range k.threadsIn(g) {
			stopped = stopped && !t.process.stuck
		}
	})
	return stopped
}

// hugetlbFiles are those of the hugetlb controller. Values are rounded down to whole huge pages; v2
// prints a fresh limit as a number and "max" only after it was written (measured on 6.18; 6.1 prints a
// fresh one as "max", and v1's rounded down).
func hugetlbFiles(sizes []int64) []*file {
	var files []*file
	for _, size := range sizes {
		name := "hugetlb." + sizeName(size)
		fresh := fmt.Sprint(noLimit / 4096 * 4096)
		for _, rsvd := range []string{"", ".rsvd"} {
			v1, v2 := name+rsvd+".limit_in_bytes", name+rsvd+".max"
			files = append(files,
				&file{name: v1, version: 1, controller: "hugetlb", initial: fresh, write: writeHuge(v1, "-1", size)},
				counter(name+rsvd+".usage_in_bytes", 1, "hugetlb", "0"),
				counter(name+rsvd+".max_usage_in_bytes", 1, "hugetlb", "0"),
				counter(name+rsvd+".failcnt", 1, "hugetlb", "0"),
				&file{name: v2, version: 2, controller: "hugetlb", place: notRoot, initial: fresh,
					write: writeHuge(v2, "max", size)},
				counter(name+rsvd+".current", 2, "hugetlb", "0").at(notRoot),
			)
		}
		files = append(files,
			counter(name+".events", 2, "hugetlb", "max 0").at(notRoot),
			counter(name+".events.local", 2, "hugetlb", "max 0").at(notRoot),
			&file{name: name + ".numa_stat", version: 2, controller: "hugetlb", place: notRoot, read: noPages},
		)
	}
	return files
}

// noPages is hugetlb's statistic by NUMA node of a group that uses none.
func noPages(k *Kernel, _ *group) string {
	text := "total=0"
	for _, node := range k.options.Nodes {
		text += fmt.Sprintf(" N%d=0", node)
	}
	return text
}

func writeHuge(name, unlimited string, size int64) func(*Kernel, *group, string) error {
	return func(k *Kernel, g *group, text string) error {
		if g.root() {
			return syscall.EINVAL
		}
		n, err := parseMemory(text, unlimited, k.options.PageSize)
		if err != nil {
			return err
		}
		n = n / size * size
		g.values[name] = fmt.Sprint(n)
		if unlimited == "max" && n == noLimit/size*size {
			g.values[name] = "max"
		}
		return nil
	}
}

// sizeName is how the kernel names a huge page size in file names (mem_fmt).
func sizeName(size int64) string {
	switch {
	case size >= 1<<30:
		return fmt.Sprintf("%dGB", size>>30)
	case size >= 1<<20:
		return fmt.Sprintf("%dMB", size>>20)
	}
	return fmt.Sprintf("%dKB", size>>10)
}

// blkioFiles are v1's blkio.throttle and v2's io.
func blkioFiles() []*file {
	var files []*file
	for _, what := range []string{"read_bps_device", "write_bps_device", "read_iops_device", "write_iops_device"} {
		name := "blkio.throttle." + what
		files = append(files, &file{name: name, version: 1, controller: "blkio",
			read:  func(_ *Kernel, g *group) string { return throttleText(g, name) },
			write: func(k *Kernel, g *group, text string) error { return k.writeThrottle(g, name, text) }})
	}
	for _, what := range []string{"io_service_bytes", "io_serviced", "io_service_bytes_recursive",
		"io_serviced_recursive"} {
		files = append(files, counter("blkio.throttle."+what, 1, "blkio", "Total 0"))
	}
	return append(files,
		counter("io.stat", 2, "blkio", ""),
		&file{name: "io.max", version: 2, controller: "blkio", place: notRoot, read: ioMaxText,
			write: (*Kernel).writeIOMax})
}

// blockDevice takes "major:minor " from the front of text.
func (k *Kernel) blockDevice(text string) (device, rest string, err error) {
	device, rest, found := strings.Cut(strings.TrimLeft(text, " \t\n"), " ")
	major, minor, colon := strings.Cut(device, ":")
	_, rest1, _ := digits(major)
	_, rest2, _ := digits(minor)
	switch {
	case !found || !colon || major == "" || minor == "" || rest1 != "" || rest2 != "":
		return "", "", syscall.EINVAL
	case !contains(k.options.Devices, device):
		return "", "", syscall.ENODEV // not there, or a partition
	}
	return device, strings.TrimSpace(rest), nil
}

// line gives a device's line of a file, made in front when it is new.
func (g *group) line(file, device string) map[string]string {
	for _, l := range g.lines[file] {
		if l.device == device {
			return l.values
		}
	}
	l := deviceLine{device: device, values: make(map[string]string)}
	g.lines[file] = append([]deviceLine{l}, g.lines[file]...)
	return l.values
}

// writeThrottle is "major:minor number". The number is scanned with %llu: what follows it is ignored, 0
// takes the limit away, and an iops number is cut to 32 bits (measured: 4294967296 gives a limit of 0).
func (k *Kernel) writeThrottle(g *group, name, text string) error {
	device, rest, err := k.blockDevice(text)
	if err != nil {
		return err
	}
	end := strings.IndexFunc(rest+" ", func(r rune) bool { return r < '0' || r > '9' })
	if end == 0 {
		return syscall.EINVAL
	}
	number, err := parseUnsigned(strings.TrimLeft(rest[:end], "0"))
	if err != nil {
		number = 0 // only zeros, or too large for 64 bits
	}
	none := number == 0 || number == 1<<64-1
	if strings.Contains(name, "iops") {
		none = none || uint32(number) == 1<<32-1
		number = uint64(uint32(number))
	}
	line := g.line(name, device)
	if delete(line, ""); !none {
		line[""] = fmt.Sprint(number)
	}
	return nil
}

func throttleText(g *group, name string) string {
	var text []string
	for _, l := range g.lines[name] {
		if number, set := l.values[""]; set {
			text = append(text, l.device+" "+number)
		}
	}
	return strings.Join(text, "\n")
}

var ioMaxKeys = []string{"rbps", "wbps", "riops", "wiops"}

// writeIOMax merges "major:minor key=value …" into the device's line; a value is a number or "max".
func (k *Kernel) writeIOMax(g *group, text string) error {
	device, rest, err := k.blockDevice(text)
	if err != nil {
		return err
	}
	changed := make(map[string]string)
	for word := range strings.FieldsSeq(rest) {
		key, value, found := strings.Cut(word, "=")
		if !found || !contains(ioMaxKeys, key) {
			return syscall.EINVAL
		}
		number, err := parseUnsigned(value)
		switch {
		case value == "max":
		case err != nil:
			return syscall.EINVAL
		case number == 0:
			return syscall.ERANGE
		case number == 1: // tg_set_limit wants more than 1
			return syscall.EINVAL
		}
		changed[key] = value
	}
	line := g.line("io.max", device)
	for key, value := range changed {
		if line[key] = value; value == "max" {
			delete(line, key)
		}
	}
	return nil
}

func ioMaxText(_ *Kernel, g *group) string {
	var text []string
	for _, l := range g.lines["io.max"] {
		if len(l.values) == 0 {
			continue
		}
		words := []string{l.device}
		for _, key := range ioMaxKeys {
			value, set := l.values[key]
			if !set {
				value = "max"
			}
			words = append(words, key+"="+value)
		}
		text = append(text, strings.Join(words, " "))
	}
	return strings.Join(text, "\n")
}

func contains(list []string, s string) bool { return slices.Contains(list, s) }
