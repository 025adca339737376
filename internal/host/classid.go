package host

import (
	"cmp"
	"os"
	"path"
	"strings"
	"sync"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"

	"golang.org/x/sys/unix"
)

// sight is whether this kernel tells the cgroup2 directory of a socket although somebody uses net_cls or net_prio.
// What does not change until the next boot is kept.
type sight struct {
	mu          sync.Mutex
	blind, sees bool
}

// blinded looks whether somebody's use of net_cls or net_prio hides the cgroup2 directories of sockets. A socket had
// room for the one or the other, and from the first use on, until the next boot, for that of v1 alone
// (cgroup_sk_alloc_disable), until 5.15 (8520e224f547). Distributions have brought that to older kernels (Debian's
// 5.10.262: measured), so the kernel is asked, where it can be: from 5.8 on.
func (h *Host) blinded(f *Facts) {
	unified, ok := f.Unified()
	if !ok || f.Kernel.Major == 0 || f.Kernel.AtLeast(5, 15) {
		return
	}
	h.sight.mu.Lock()
	defer h.sight.mu.Unlock()
	if h.sight.sees {
		return
	}
	used, left := "", mostClassDirs
	for _, in := range f.Hierarchies {
		if used == "" && in.Version == 1 && (in.Has("net_cls") || in.Has("net_prio")) {
			used = h.classedBelow(in.Mount, &left)
		}
	}
	f.BlindedBy = used
	if !h.Root.Live() {
		return
	}
	sees, known := false, h.sight.blind
	if !known {
		sees, known = seesOwnSocket(unified.Mount)
	}
	switch {
	case known && sees:
		h.sight.sees, f.BlindedBy = used != "", ""
	case known:
		h.sight.blind, f.BlindedBy = true, cmp.Or(used, "a class or priority that somebody gave sockets since the boot")
	}
}

// classedBelow finds a directory with a class, dir or one below it.
func (h *Host) classedBelow(dir string, left *int) string {
	if *left--; *left < 0 {
		return ""
	}
	classes, err := h.Root.ReadText(path.Join(dir, "net_cls.classid"))
	priorities, err2 := h.Root.ReadText(path.Join(dir, "net_prio.ifpriomap"))
	if err != nil && err2 != nil { // no directory of theirs
		return ""
	}
	if classes != "" && classes != "0" || prioritised(priorities) {
		return dir
	}
	names, err := h.Root.ReadDir(dir)
	if err != nil {
		return ""
	}
	for _, name := range names {
		if isKernelFile(name) {
			continue
		}
		if found := h.classedBelow(path.Join(dir, name), left); found != "" {
			return found
		}
	}
	return ""
}

// prioritised reads net_prio.ifpriomap: a line per interface, its name and a priority.
func prioritised(text string) bool {
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) == 2 && words[1] != "0" {
			return true
		}
	}
	return false
}

// isKernelFile says whether a name in a v1 directory is one of the kernel's files for all: nobody may give a
// directory such a name there.
func isKernelFile(name string) bool {
	switch name {
	case "tasks", "notify_on_release", "release_agent":
		return true
	}
	return strings.HasPrefix(name, "cgroup.") || strings.HasPrefix(name, "net_cls.") ||
		strings.HasPrefix(name, "net_prio.")
}

// mostClassDirs bounds the directories that are looked at for classes of sockets.
const mostClassDirs = 10000

// seesOwnSocket says whether the kernel tells the cgroup2 directory of a socket that we make. It is not known in the
// top directory, which is what a blinded kernel says of all, nor where the kernel cannot be asked.
func seesOwnSocket(mount string) (sees, known bool) {
	own := ownGroup()
	if own == "" || own == "/" {
		return false, false
	}
	var st, top unix.Stat_t
	group, err := sockets.OwnGroup()
	if err != nil || unix.Stat(path.Join(mount, own), &st) != nil || unix.Stat(mount, &top) != nil {
		return false, false
	}
	return group == st.Ino, group == st.Ino || group == top.Ino
}

// ownGroup is our own cgroup2 directory, "" when that cannot be told.
func ownGroup() string {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return ""
	}
	paths, err := procfs.ParseCgroup(text)
	if err != nil {
		return ""
	}
	return paths[procfs.UnifiedID]
}
