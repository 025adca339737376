package sockets

import (
	"net/netip"
	"slices"

	"bulkhead/internal/linux/procfs"
)

// Connections returns what the processes are connected to on this host: the addresses of the other ends,
// TCP by port first. A connection to another host is left out, for its other end is not in the tables of this
// one. A process without any is in the map too; one that has exited is not. What the reader has no right to see
// is left out and named in the error, beside the rest.
//
// /proc does not say who is at the other end of a Unix socket; sock_diag(7) does (unix_diag, kernel 3.3).
// Without it, in a captured host and for a process in another network namespace, they are left out.
func (h Tables) Connections(pids []int) (map[int][]Listener, error) {
	c := connections{h: h, tcp: map[string]map[string]Listener{}}
	return ofEach(pids, "find connections", c.of)
}

// connections is one look at the tables of sockets, each read once.
type connections struct {
	h    Tables
	tcp  map[string]map[string]Listener // by network namespace, then by inode: the other end
	unix map[string]string              // by inode: the path of the other end; nil until asked for
}

func (c *connections) of(pid int) ([]Listener, error) {
	inodes, namespace, table, err := c.h.socketsOf(pid, c.tcp, connected)
	if err != nil || len(inodes) == 0 {
		return nil, err
	}
	own, _ := c.h.root.Readlink("/proc/self/ns/net")
	var list []Listener
	add := func(l Listener, is bool) {
		if is && !slices.Contains(list, l) {
			list = append(list, l)
		}
	}
	for _, inode := range inodes {
		l, is := table[inode]
		add(l, is)
		if !is && namespace == own {
			name, is := c.unixPeer(inode)
			add(Listener{Network: "unix", Address: name}, is)
		}
	}
	slices.SortFunc(list, compareListeners)
	return list, nil
}

// connected returns the other ends of the TCP connections of the process's network namespace that both ends
// are in, by inode.
func connected(d procfs.Dir) (map[string]Listener, error) {
	var all []tcpConnection
	for _, name := range []string{"net/tcp", "net/tcp6"} {
		text, err := readTable(d, name)
		if err != nil {
			return nil, err
		}
		more, err := parseConnections(text)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	here := make(map[[2]netip.AddrPort]bool, len(all))
	for _, c := range all {
		here[[2]netip.AddrPort{c.local, c.remote}] = true
	}
	table := make(map[string]Listener)
	for _, c := range all {
		if here[[2]netip.AddrPort{c.remote, c.local}] {
			table[c.inode] = Listener{"tcp", c.remote.String(), int(c.remote.Port())}
		}
	}
	return table, nil
}

// tcpConnection is one established connection. An IPv4 address is written as such, also where an IPv6 socket
// has it.
type tcpConnection struct {
	local, remote netip.AddrPort
	inode         string
}

// parseConnections reads the established connections of /proc/net/tcp or tcp6.
func parseConnections(text []byte) (all []tcpConnection, err error) {
	const established = "01" // TCP_ESTABLISHED of net/tcp_states.h
	err = eachTCP(text, established, func(local, remote netip.AddrPort, inode string) {
		all = append(all, tcpConnection{unmapped(local), unmapped(remote), inode})
	})
	return all, err
}

func unmapped(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// unixPeer returns the path at the other end of a Unix socket. What accept(2) gives out has the path of the
// socket that listens.
func (c *connections) unixPeer(inode string) (string, bool) {
	if !c.h.root.Live() {
		return "", false
	}
	if c.unix == nil {
		// Without unix_diag in the kernel nothing is known: that is no error of the process.
		answer, _ := askUnixSockets()
		c.unix = parseUnixDiag(answer)
	}
	name, is := c.unix[inode]
	return name, is
}
