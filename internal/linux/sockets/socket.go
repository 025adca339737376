// Package sockets finds the sockets that processes listen on and are connected to: by the tables of /proc/PID/net
// (proc(5)) and, for Unix sockets, by sock_diag(7). Tables is a value over a root directory and safe for concurrent
// use.
package sockets

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
)

// Listener is a listening socket of a process.
type Listener struct {
	Network string // "tcp" or "unix"
	Address string // "0.0.0.0:3306", "[::]:3306", or the path of the socket; an abstract one begins with "@"
	Port    int    // 0 for unix
}

// Tables reads sockets.
type Tables struct {
	root *sysroot.FS
	proc procfs.FS
}

// New reads the tables of sockets below root.
func New(root *sysroot.FS) Tables { return Tables{root, procfs.New(root)} }

// Listeners returns the listening sockets of each process, TCP by port first. A process without any
// is in the map too; one that has exited is not. What the reader has no right to see is left out and
// named in the error, beside the rest.
func (h Tables) Listeners(pids []int) (map[int][]Listener, error) {
	tables := map[string]map[string]Listener{} // by network namespace, then by inode
	return ofEach(pids, "find listening sockets",
		func(pid int) ([]Listener, error) { return h.listenersOf(pid, tables) })
}

// ofEach gathers what is found out about each process; one that has exited is left out, and any other trouble is named.
func ofEach(pids []int, what string, of func(pid int) ([]Listener, error)) (map[int][]Listener, error) {
	found := make(map[int][]Listener, len(pids))
	var problems []error
	for _, pid := range pids {
		list, err := of(pid)
		switch {
		case errors.Is(err, procfs.ErrExited):
		case err != nil:
			problems = append(problems, fmt.Errorf("%s: %w", what, err))
		default:
			found[pid] = list
		}
	}
	return found, errors.Join(problems...)
}

func (h Tables) listenersOf(pid int, tables map[string]map[string]Listener) ([]Listener, error) {
	inodes, _, table, err := h.socketsOf(pid, tables, listening)
	if err != nil {
		return nil, err
	}
	var list []Listener
	for _, inode := range inodes {
		if l, is := table[inode]; is && !slices.Contains(list, l) {
			list = append(list, l)
		}
	}
	slices.SortFunc(list, compareListeners)
	return list, nil
}

// socketsOf gives the inode numbers of the sockets that a process has open, with its network namespace and the table
// of that by inode, which is read once for all processes in it. Of a process without sockets there is neither.
func (h Tables) socketsOf(pid int, tables map[string]map[string]Listener,
	read func(procfs.Dir) (map[string]Listener, error)) (inodes []string, namespace string, table map[string]Listener,
	err error) {
	dir, err := h.proc.OpenProc(pid)
	if err != nil {
		return nil, "", nil, err
	}
	defer dir.Close()
	if inodes, err = dir.Sockets(); err != nil {
		return nil, "", nil, dir.Failed(err)
	}
	if len(inodes) == 0 {
		return nil, "", nil, nil
	}
	namespace, err = dir.Link("ns/net")
	if errors.Is(err, fs.ErrNotExist) && dir.Alive() {
		namespace, err = "", nil // before kernel 3.0 and in hand-made fixtures: there is one
	}
	if err != nil {
		return nil, "", nil, dir.Failed(err)
	}
	table, known := tables[namespace]
	if !known {
		if table, err = read(dir); err != nil {
			return nil, "", nil, dir.Failed(err)
		}
		tables[namespace] = table
	}
	return inodes, namespace, table, nil
}

func compareListeners(a, b Listener) int {
	if a.Network != b.Network {
		return strings.Compare(a.Network, b.Network)
	}
	if a.Port != b.Port {
		return a.Port - b.Port
	}
	return strings.Compare(a.Address, b.Address)
}

// listeningTables are the kernel's tables of sockets. Servers listen on their ports before they do on their sockets:
// who is seen with a socket is seen with its port, too, when that is looked for later.
var listeningTables = []string{"net/unix", "net/tcp", "net/tcp6"}

// listening returns the listening sockets of the process's network namespace by inode.
func listening(d procfs.Dir) (map[string]Listener, error) {
	table := map[string]Listener{}
	for _, name := range listeningTables {
		parse := parseTCP
		if name == "net/unix" {
			parse = parseUnix
		}
		text, err := readTable(d, name)
		if err != nil {
			return nil, err
		}
		if err := parse(text, table); err != nil {
			return nil, err
		}
	}
	return table, nil
}

// readTable reads a table of sockets; nothing where the host has none, for want of IPv6.
func readTable(d procfs.Dir, name string) ([]byte, error) {
	text, err := d.Read(nil, name, sysroot.MaxPseudoFile)
	if errors.Is(err, fs.ErrNotExist) && d.Alive() {
		return nil, nil
	}
	return text, err
}

// parseTCP adds the listening sockets of /proc/net/tcp or tcp6.
func parseTCP(text []byte, table map[string]Listener) error {
	const listen = "0A" // TCP_LISTEN of net/tcp_states.h
	return eachTCP(text, listen, func(local, _ netip.AddrPort, inode string) {
		table[inode] = Listener{"tcp", local.String(), int(local.Port())}
	})
}

// eachTCP reads the sockets of /proc/net/tcp or tcp6 (proc(5)) that are in a state:
// "0: 0100007F:0CEA 00000000:0000 0A …", field 4 the state, field 10 the inode.
func eachTCP(text []byte, state string, do func(local, remote netip.AddrPort, inode string)) error {
	number := 0
	for line := range bytes.Lines(text) {
		if number++; number == 1 {
			continue // the heading
		}
		fields := bytes.Fields(line)
		if len(fields) < 10 {
			return fmt.Errorf("parse net/tcp: line %d: %d fields, want ten", number, len(fields))
		}
		if string(fields[3]) != state {
			continue
		}
		local, err := parseAddress(string(fields[1]))
		remote, err2 := parseAddress(string(fields[2]))
		if err = cmp.Or(err, err2); err != nil {
			return fmt.Errorf("parse net/tcp: line %d: %w", number, err)
		}
		do(local, remote, string(fields[9]))
	}
	return nil
}

// parseAddress reads "0100007F:0CEA". The kernel prints the address as 32-bit numbers in its own byte
// order, the port as a number.
func parseAddress(text string) (netip.AddrPort, error) {
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	if err != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, fmt.Errorf("%q is not an address", text)
	}
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("%q has no port", text)
	}
	for word := raw; len(word) > 0; word = word[4:] {
		binary.NativeEndian.PutUint32(word, binary.BigEndian.Uint32(word))
	}
	address, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(address, uint16(n)), nil
}

// parseUnix adds the listening sockets of /proc/net/unix (proc(5)):
// "000000009a187066: 00000002 00000000 00010000 0001 01 16423 /run/mysqld/mysqld.sock".
func parseUnix(text []byte, table map[string]Listener) error {
	const acceptsConnections = 1 << 16 // __SO_ACCEPTCON of linux/net.h
	number := 0
	for line := range strings.Lines(string(text)) {
		if number++; number == 1 {
			continue // the heading
		}
		fields := strings.Fields(line)
		if len(fields) < 7 {
			continue // a path may hold a newline: what follows it is no socket of its own
		}
		flags, err := strconv.ParseUint(fields[3], 16, 64)
		if err != nil || flags&acceptsConnections == 0 || len(fields) < 8 {
			continue
		}
		_, name, _ := strings.Cut(line, " "+fields[6]+" ") // a path may hold blanks
		table[fields[6]] = Listener{"unix", strings.TrimSuffix(name, "\n"), 0}
	}
	return nil
}
