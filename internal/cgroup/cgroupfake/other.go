package cgroupfake

import (
	"strings"
)

// otherFiles belong to controllers that bulkhead does not set; they keep what is written.
func otherFiles() []*file {
	keep := func(name, controller, initial string) *file {
		return &file{name: name, version: 1, controller: controller, initial: initial,
			write: func(_ *kernel, g *group, text string) error {
				g.values[name] = strings.TrimSpace(text)
				return nil
			}}
	}
	files := []*file{
		counter("devices.list", 1, "devices", "a *:* rwm"),
		keep("net_cls.classid", "net_cls", "0"),
		keep("net_prio.ifpriomap", "net_prio", ""),
		counter("net_prio.prioidx", 1, "net_prio", "1"),
		counter("cpuacct.stat", 1, "cpuacct", "user 0\nsystem 0"),
		counter("cpuacct.usage", 1, "cpuacct", "0"),
		counter("cpuacct.usage_percpu", 1, "cpuacct", "0 0"),
	}
	for _, name := range []string{"devices.allow", "devices.deny"} {
		files = append(files, &file{name: name, version: 1, controller: "devices", writeOnly: true,
			write: func(*kernel, *group, string) error { return nil }})
	}
	return files
}
