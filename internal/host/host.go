// Package host tells what the machine is: its kernel, CPUs, NUMA nodes, memory, cgroup hierarchies and block devices
// (Facts), and bundles the readers of the packages below internal/linux over one root directory (Host).
//
// Everything is read below that directory, so a captured host (Capture) is a fixture. A Facts value is one look and
// does not change; nothing here remembers what an earlier look said. A Host is safe for concurrent use.
package host

import (
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/users"
)

// Host reads one machine. It is safe for concurrent use.
type Host struct {
	Root    *sysroot.FS
	Proc    procfs.FS
	Block   blockdev.FS
	Sockets sockets.Tables
	Users   *users.Names
	sight   sight // whether this kernel tells the cgroup2 directory of a socket though net_cls is used
}

// New returns the host whose /proc, /sys and /etc lie below root: "/" is this machine, any other
// directory a captured one. Nothing outside root is ever read: symbolic links, absolute ones
// included, are followed inside it.
func New(root string) *Host { return Over(sysroot.New(root)) }

// Over returns the host that a root shows, such as one that records what is read (sysroot.FS.Record).
func Over(root *sysroot.FS) *Host {
	return &Host{
		Root: root, Proc: procfs.New(root), Block: blockdev.New(root), Sockets: sockets.New(root),
		Users: users.New(root),
	}
}
