package host

import (
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
