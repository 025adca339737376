// Package tunable has the actuators of settings of the running kernel, and of the files that give the host the same
// settings when it boots: sysctls below /proc/sys (sysctl(8), sysctl.d(5)) and attributes below /sys (tmpfiles.d(5)).
// Its settings of services are those of package service.
//
// What is written outlives a boot, as the files set it again: changes of these kinds are undone in later boots, too.
package tunable

import (
	"fmt"
	"maps"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/tunable/service"
)

// Lasting are the kinds of this package whose values outlive a boot.
var Lasting = []change.Kind{KindSysctl, KindAttribute, KindQueue, KindBootFile, service.KindSetting,
	service.KindLimit}

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
	return all
}

// Check says what is wrong with a setting: its name is that of a sysctl, a path below /sys, "disk DISK/FILE" or
// "unit SERVICE/SETTING", and its value is one line of printable ASCII. nil is nothing.
func Check(name, value string) error {
	if addr, is := strings.CutPrefix(name, service.Prefix); is {
		return service.Check(addr, value)
	}
	if disk, is := strings.CutPrefix(name, diskPrefix); is {
		return checkQueue(disk, value)
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

// Canonical is the one name of a setting that has several: of short names the path, and dots in a sysctl's name where
// it can have them. What is no name stays as it is.
func Canonical(name string) string {
	if path, short := ShortNames[name]; short {
		return path
	}
	for _, prefix := range []string{diskPrefix, service.Prefix} {
		if of, is := strings.CutPrefix(name, prefix); is {
			return prefix + strings.TrimSpace(of)
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
	switch t.Kind {
	case KindBootFile, service.KindSetting:
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
	if IsDisk(name) {
		return queueTarget(name)
	}
	if addr, is := strings.CutPrefix(name, service.Prefix); is {
		return service.Target(addr)
	}
	if strings.HasPrefix(name, "/") {
		return Attribute(name)
	}
	return Sysctl(name)
}
