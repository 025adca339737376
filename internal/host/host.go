// Package host is the only door to /proc and /sys: what the machine is and what runs on it.
//
// Everything is read below a root directory, so a captured host is a fixture. A Facts value is one
// look; nothing here remembers what an earlier look said, apart from the process cache of Scanner,
// which is keyed by pid and start time, and the user names, which are kept for some seconds.
//
// Reading and parsing are apart: parsers take text and are fuzzed, and what the kernel adds to a
// file in a later version is passed over.
package host

// Host reads one machine. It is safe for concurrent use.
type Host struct {
	Root    *Root
	Proc    ProcFS
	Block   BlockFS
	Sockets SocketFS
	Users   *Users
	sight   sight // whether this kernel tells the cgroup2 directory of a socket though net_cls is used
}

// New returns the host whose /proc, /sys and /etc lie below root: "/" is this machine, any other
// directory a captured one. Nothing outside root is ever read: symbolic links, absolute ones
// included, are followed inside it.
func New(root string) *Host { return over(NewRoot(root)) }

func over(root *Root) *Host {
	proc := ProcFS{root}
	return &Host{Root: root, Proc: proc, Block: BlockFS{root, proc}, Sockets: SocketFS{root, proc}, Users: NewUsers(root)}
}
