// Package engine describes database servers: the engines by name, an instance with its processes and helpers, whether
// a policy's match fits it, and a first policy for those of a host.
//
// Package recognise finds instances among processes, options reads how they were started, tool knows the programs
// that serve them, and datafiles finds their files.
package engine

import (
	"cmp"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/terminal"
)

// The engines recognised here, as a policy's `engine:` names them.
const (
	Cassandra  = "cassandra"
	ClickHouse = "clickhouse"
	Etcd       = "etcd"
	MongoDB    = "mongodb"
	MySQL      = "mysql"  // and its flavours MariaDB and Percona Server
	Oracle     = "oracle" // and its flavour ASM
	PostgreSQL = "postgresql"
	Redis      = "redis" // and its flavour Valkey
	ScyllaDB   = "scylladb"
	SQLServer  = "sqlserver"
)

// The flavours told apart here.
const (
	ASM     = "asm" // Oracle's disk manager, which serves the databases of a host
	MariaDB = "mariadb"
	Percona = "percona"
	Valkey  = "valkey"
)

// Instance is one running database server.
type Instance struct {
	Engine  string // one of Known
	Flavor  string // "mariadb", "percona", "valkey", "asm"; "" for the plain one
	Version string // as far as it can be told without asking the server; "" if not
	Main    procfs.ID
	User    string // name, or number when it has none
	Port    int    // the main TCP port it listens on; 0 when it listens on none
	Ports   []int  // every TCP port it listens on, ascending; nil when that could not be read
	// Addresses are those it listens on for TCP, each with its port; nil when that could not be read.
	Addresses []netip.AddrPort

	Socket  string // unix socket, "" if none
	DataDir string // as configured where that is known, else its working directory
	Config  string // its configuration file, "" if unknown
	Cluster string // PostgreSQL cluster_name, Debian's "15/main"; "" elsewhere
	SID     string // Oracle's name of the instance, "+ASM1" for ASM; "" elsewhere
	Members []Member
	Helpers []Helper // by pid; programs that serve it, and those that may
	// Container marks an instance of a container: it is shown and never placed.
	Container bool
	// Evidence lists the signals that agreed, for explain and discover.
	Evidence []string

	// Seen says that its listening sockets were seen, rather than read from its configuration.
	Seen bool
}

// Member is a process of an instance and its part ("main", "backends", "walwriter", …).
type Member struct {
	ID   procfs.ID
	Part string
}

// The parts that more than one engine has.
const (
	PartMain       = "main"
	PartSupervisor = "supervisor" // the parent that restarts the server: mysqld_safe
	PartSentinel   = "sentinel"   // Redis Sentinel: watches servers, holds no data
	PartSave       = "save"       // the child of Redis that writes a snapshot
)

// Flavors returns the flavours of an engine that `engine:` takes too, sorted.
func Flavors(engine string) []string {
	switch engine {
	case MySQL:
		return []string{MariaDB, Percona}
	case Oracle:
		return []string{ASM}
	case Redis:
		return []string{Valkey}
	}
	return nil
}

// Sentinel says that the instance is a Redis Sentinel. It watches databases and is none itself: only
// `part: sentinel` matches it.
func (i Instance) Sentinel() bool {
	return len(i.Members) > 0 && i.Members[0].Part == PartSentinel
}

// Part returns the part of a process in the instance.
func (i Instance) Part(id procfs.ID) (string, bool) {
	for _, m := range i.Members {
		if m.ID == id {
			return m.Part, true
		}
	}
	return "", false
}

// ListensOn says whether the instance is at that end of a connection: a TCP port with its address, "10.0.0.5:3306", or
// the path of a socket with port 0.
func (i Instance) ListensOn(port int, address string) bool {
	if port == 0 {
		return address != "" && address == i.Socket
	}
	at, _ := netip.ParseAddrPort(address)
	return i.Reached(port, at.Addr())
}

// Reached says whether a client that connects to a TCP port at an address of this host reaches the instance. The zero
// address and an unspecified one stand for any, and so does that of an instance which was not seen listening.
func (i Instance) Reached(port int, at netip.Addr) bool {
	if port == 0 || port != i.Port && !slices.Contains(i.Ports, port) {
		return false
	}
	at = at.Unmap()
	anywhere := !at.IsValid() || at.IsUnspecified()
	for _, l := range i.Addresses {
		if int(l.Port()) == port && (anywhere || l.Addr() == at || l.Addr().IsUnspecified()) {
			return true
		}
	}
	return len(i.Addresses) == 0
}

// Apart returns the placeholder that tells the instance from another one of its name: "{datadir}" or "{socket}"; "" for
// none.
func (i Instance) Apart(other Instance) string {
	mine, theirs := i.Placeholders(), other.Placeholders()
	for _, name := range []string{"datadir", "socket"} {
		if a, b := mine[name], theirs[name]; a != "" && b != "" && a != b {
			return "{" + name + "}"
		}
	}
	return ""
}

// Listening says whether the instance has a port or a socket yet. A server that has just been started
// has none, and so no name that would last.
func (i Instance) Listening() bool { return i.Port != 0 || i.Socket != "" || i.SID != "" }

// Name is the name of the instance: "mysql3306", "postgresql5432", "redis6379", "oracle-BXTST02". An instance
// without a port and a SID is named after its socket or else its data directory: "mysql-orders" for
// /run/orders.sock. A name fits the rules for group names.
func (i Instance) Name() string {
	kind := i.Engine
	if i.Sentinel() {
		kind = PartSentinel
	}
	switch {
	case i.SID != "":
		return strings.TrimSuffix(kind+"-"+nameFrom(i.SID), "-")
	case i.Port != 0:
		return kind + strconv.Itoa(i.Port)
	case i.Socket != "":
		return strings.TrimSuffix(kind+"-"+nameFrom(strings.TrimSuffix(path.Base(i.Socket), ".sock")), "-")
	case i.DataDir != "":
		return strings.TrimSuffix(kind+"-"+nameFrom(path.Base(i.DataDir)), "-")
	}
	return kind
}

// String describes the instance for people and terminals: "mysql 3306 (/var/lib/mysql)".
func (i Instance) String() string {
	s := cmp.Or(i.Flavor, i.Engine)
	if i.Sentinel() {
		s += " sentinel"
	}
	switch {
	case i.SID != "":
		s += " " + i.SID
	case i.Port != 0:
		s += " " + strconv.Itoa(i.Port)
	case i.Socket != "":
		s += " " + i.Socket
	}
	if i.DataDir != "" {
		s += " (" + i.DataDir + ")"
	}
	return terminal.Printable(s)
}

// Placeholders returns what a template's placeholders stand for on this instance. What it does not
// have is "".
func (i Instance) Placeholders() map[string]string {
	port := ""
	if i.Port != 0 {
		port = strconv.Itoa(i.Port)
	}
	return map[string]string{
		"port":     port,
		"socket":   i.Socket,
		"datadir":  i.DataDir,
		"sid":      i.SID,
		"engine":   i.Engine,
		"instance": i.Name(),
		"user":     i.User,
	}
}

// Matches says whether the instance is one that the engine, port, socket, datadir, sid and instance keys
// of a match ask for; keys that are not set ask for nothing. `engine: mysql` takes every flavour,
// `engine: mariadb` that flavour alone. `instance` is a Name or a PostgreSQL cluster name. A Sentinel
// matches only when the match asks for that part, ASM only when it asks for ASM or for that SID: a limit
// meant for databases must not reach what all of them wait for.
func (i Instance) Matches(m policy.Match) bool {
	clause, _ := i.Mismatch(m)
	return clause == ""
}

// Mismatch returns the first key of a match that the instance does not fit, with what the instance has
// there; "" when it fits.
func (i Instance) Mismatch(m policy.Match) (key, have string) {
	if key, have = i.mismatchKind(m); key != "" {
		return key, have
	}
	switch {
	case m.Port != "" && !i.hasPort(m.Port):
		return "port", i.portText()
	case m.Socket != "" && !samePath(m.Socket, i.Socket):
		return "socket", i.Socket
	case m.DataDir != "" && !samePath(m.DataDir, i.DataDir):
		return "datadir", i.DataDir
	case m.SID != "" && m.SID != i.SID:
		return "sid", i.SID
	case m.Instance != "" && m.Instance != i.Name() && (i.Cluster == "" || m.Instance != i.Cluster):
		return "instance", i.Name()
	}
	return "", ""
}

// mismatchKind compares what kind of server the instance is: its engine, and whether it is one at all.
func (i Instance) mismatchKind(m policy.Match) (key, have string) {
	switch {
	case m.Engine != "" && m.Engine != i.Engine && m.Engine != i.Flavor:
		return "engine", cmp.Or(i.Flavor, i.Engine)
	case i.Sentinel() && m.Part != PartSentinel:
		return "part", PartSentinel
	case i.Flavor == ASM && m.Engine != ASM && m.SID == "":
		return "engine", ASM
	}
	return "", ""
}

// samePath compares a path that is asked for with one that may be unknown.
func samePath(want, have string) bool { return have != "" && path.Clean(want) == path.Clean(have) }

func (i Instance) hasPort(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n != 0 && (n == i.Port || slices.Contains(i.Ports, n))
}

func (i Instance) portText() string {
	if i.Port == 0 {
		return ""
	}
	return strconv.Itoa(i.Port)
}

// nameFrom turns any text into something that may follow in a group name: letters, digits, "_", "."
// and "-" stay, runs of others become one "-".
func nameFrom(s string) string {
	var b strings.Builder
	for _, r := range strings.Trim(s, "./") {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '_', r == '.', r == '-':
			b.WriteRune(r)
		case !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	return strings.Trim(b.String(), "-")
}
