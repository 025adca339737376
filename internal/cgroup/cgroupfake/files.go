package cgroupfake

import (
	"fmt"
	"strings"
	"syscall"

	"bulkhead/internal/cgroup/cgroupfake/kstrto"
	"bulkhead/internal/host"
)

// flag is a file that takes 0 and 1; what else the kernel answers to is refused.
func flag(name string, version int, controller, initial string, refused syscall.Errno) *file {
	return &file{name: name, version: version, controller: controller, initial: initial,
		write: func(_ *kernel, g *group, text string) error {
			n, err := kstrto.Signed(text)
			if err != nil {
				return err
			}
			if n != 0 && n != 1 {
				return refused
			}
			g.values[name] = fmt.Sprint(n)
			return nil
		}}
}

// boolean is a file that takes any number and keeps whether it is 0.
func boolean(name string, controller, initial string) *file {
	return &file{name: name, version: 1, controller: controller, initial: initial,
		write: func(_ *kernel, g *group, text string) error {
			n, err := kstrto.Unsigned(text)
			if err != nil {
				return err
			}
			g.values[name] = "0"
			if n != 0 {
				g.values[name] = "1"
			}
			return nil
		}}
}

// counter is a read-only file that shows the same text until Set says otherwise.
func counter(name string, version int, controller, initial string) *file {
	return &file{name: name, version: version, controller: controller,
		read: func(*kernel, *group) string { return initial }}
}

// count is a read-only file that is computed.
func count(name string, version int, controller string, n func(*kernel, *group) int64) *file {
	return &file{name: name, version: version, controller: controller,
		read: func(k *kernel, g *group) string { return fmt.Sprint(n(k, g)) }}
}

func (f *file) at(p place) *file { f.place = p; return f }

func (f *file) from(v host.Version) *file { f.since = v; return f }

// setLimit keeps "max" or a number from 0 to most.
func (g *group) setLimit(name, text string, most int64) error {
	text = strings.TrimSpace(text)
	if text == "max" {
		g.values[name] = text
		return nil
	}
	n, err := kstrto.Signed(text)
	switch {
	case err != nil:
		return err
	case n < 0 || n > most:
		return syscall.ERANGE
	}
	g.values[name] = fmt.Sprint(n)
	return nil
}
