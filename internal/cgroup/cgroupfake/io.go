package cgroupfake

import (
	"fmt"
	"slices"
	"strings"
	"syscall"

	"bulkhead/internal/cgroup/cgroupfake/kstrto"
)

// blkioFiles are v1's blkio.throttle and v2's io.
func blkioFiles() []*file {
	var files []*file
	for _, what := range []string{"read_bps_device", "write_bps_device", "read_iops_device", "write_iops_device"} {
		name := "blkio.throttle." + what
		files = append(files, &file{name: name, version: 1, controller: "blkio",
			read:  func(_ *kernel, g *group) string { return throttleText(g, name) },
			write: func(k *kernel, g *group, text string) error { return k.writeThrottle(g, name, text) }})
	}
	for _, what := range []string{"io_service_bytes", "io_serviced", "io_service_bytes_recursive",
		"io_serviced_recursive"} {
		files = append(files, counter("blkio.throttle."+what, 1, "blkio", "Total 0"))
	}
	return append(files,
		counter("io.stat", 2, "blkio", ""),
		&file{name: "io.max", version: 2, controller: "blkio", place: notRoot, read: ioMaxText,
			write: (*kernel).writeIOMax})
}

// blockDevice takes "major:minor " from the front of text.
func (o Options) blockDevice(text string) (device, rest string, err error) {
	device, rest, found := strings.Cut(strings.TrimLeft(text, " \t\n"), " ")
	major, minor, colon := strings.Cut(device, ":")
	_, rest1, _ := kstrto.Digits(major)
	_, rest2, _ := kstrto.Digits(minor)
	switch {
	case !found || !colon || major == "" || minor == "" || rest1 != "" || rest2 != "":
		return "", "", syscall.EINVAL
	case !slices.Contains(o.Devices, device):
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
func (k *kernel) writeThrottle(g *group, name, text string) error {
	device, rest, err := k.options.blockDevice(text)
	if err != nil {
		return err
	}
	end := strings.IndexFunc(rest+" ", func(r rune) bool { return r < '0' || r > '9' })
	if end == 0 {
		return syscall.EINVAL
	}
	number, err := kstrto.Unsigned(strings.TrimLeft(rest[:end], "0"))
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
func (k *kernel) writeIOMax(g *group, text string) error {
	device, rest, err := k.options.blockDevice(text)
	if err != nil {
		return err
	}
	changed := make(map[string]string)
	for word := range strings.FieldsSeq(rest) {
		key, value, found := strings.Cut(word, "=")
		if !found || !slices.Contains(ioMaxKeys, key) {
			return syscall.EINVAL
		}
		number, err := kstrto.Unsigned(value)
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

func ioMaxText(_ *kernel, g *group) string {
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
