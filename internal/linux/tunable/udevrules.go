package tunable

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
)

// ruleDirs are where udev(7) reads; a file hides those of its name in later directories.
var ruleDirs = []string{
	"/etc/udev/rules.d", "/run/udev/rules.d", "/usr/local/lib/udev/rules.d", "/usr/lib/udev/rules.d",
	"/lib/udev/rules.d",
}

// laterFiles are the files of an ending that are read after one of bulkhead's, in that order.
func laterFiles(root *sysroot.FS, dirs []string, ours, ending string) (later []string) {
	files := map[string]string{}
	for _, dir := range slices.Backward(dirs) {
		names, _ := root.ReadDir(dir) // one that is not there has no files
		for _, name := range names {
			if name > path.Base(ours) && path.Ext(name) == ending {
				files[name] = path.Join(dir, name)
			}
		}
	}
	var names []string
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		later = append(later, files[name])
	}
	return later
}

var (
	// setsQueue is an assignment of a rule to a file of a queue.
	setsQueue = regexp.MustCompile(`ATTR\{queue/([a-z_]+)\}\s*:?=\s*"([^"]*)"`)
	// asksKernel is a condition of a rule on the name of the disk.
	asksKernel = regexp.MustCompile(`KERNEL\s*([!=]=)\s*"([^"]*)"`)
	// asksDisk is one on a file of the disk.
	asksDisk = regexp.MustCompile(`ATTR\{([a-z_/]+)\}\s*([!=]=)\s*"([^"]*)"`)
)

// overruledQueues adds which rules of others win over bulkhead's file. Of the conditions of a rule the name of the disk
// and its own files are looked at: a rule that may be for the disk by them is taken to be.
func overruledQueues(root *sysroot.FS, wanted, by map[change.Target]string) {
	q := &Queues{Host: Host{Root: root}}
	for _, file := range laterFiles(root, ruleDirs, QueueFile, ".rules") {
		text, _ := root.ReadText(file)
		for number, line := range strings.Split(text, "\n") {
			if strings.HasPrefix(strings.TrimSpace(line), "#") {
				continue
			}
			for _, set := range setsQueue.FindAllStringSubmatch(line, -1) {
				for target, want := range wanted {
					spec, name := splitQueue(target.Addr)
					disk, err := q.disk(spec)
					switch {
					case target.Kind != KindQueue || name != set[1] || err != nil || !mayBeFor(root, line, disk):
					case set[2] == want:
						delete(by, target)
					default:
						by[target] = fmt.Sprintf("line %d of %s sets %s", number+1, file, set[2])
					}
				}
			}
		}
	}
}

// mayBeFor says whether the conditions of a rule that are looked at hold for a disk.
func mayBeFor(root *sysroot.FS, line, disk string) bool {
	holds := func(operator, patterns, value string) bool {
		matches := slices.ContainsFunc(strings.Split(patterns, "|"), func(p string) bool {
			is, err := path.Match(strings.ReplaceAll(p, "[!", "[^"), value)
			return is || err != nil
		})
		return matches == (operator == "==")
	}
	for _, m := range asksKernel.FindAllStringSubmatch(line, -1) {
		if !holds(m[1], m[2], disk) {
			return false
		}
	}
	for _, m := range asksDisk.FindAllStringSubmatch(line, -1) {
		text, err := root.ReadText(path.Join("/sys/block", disk, m[1]))
		if err == nil && m[1] != "queue/"+fileScheduler && !holds(m[2], m[3], text) {
			return false
		}
	}
	return true
}
