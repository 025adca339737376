package places

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/engine"
)

// Kind is what a path is for.
type Kind string

// The kinds told apart here.
const (
	Data        Kind = "data" // written by the server: data, logs of changes
	Log         Kind = "log"  // for people
	Runtime     Kind = "runtime"
	Temporary   Kind = "temporary"
	Config      Kind = "configuration"
	Certificate Kind = "certificate"
	Share       Kind = "share" // read only: messages, character sets
	Library     Kind = "library"
	Program     Kind = "program"
)

// Place is a path that a server uses.
type Place struct {
	Setting string `json:"setting"`
	From    string `json:"from"` // where the setting was read, as "/etc/my.cnf:3"
	Kind    Kind   `json:"kind"`
	Path    string `json:"path"` // as the server sees it
}

// Port is one that a server listens on.
type Port struct {
	Setting  string `json:"setting"`
	From     string `json:"from"`
	Protocol string `json:"protocol"` // "tcp" or "udp"
	Number   int    `json:"port"`
	// Peers says that other nodes listen on the same port, and it connects to them.
	Peers bool `json:"peers"`
}

// Lookup gives the value of a setting and where it was read; from is "" where it is not known.
type Lookup func(name string) (value, from string)

type collector struct {
	inst   engine.Instance
	get    Lookup
	places []Place
	ports  []Port
	seen   map[string]bool
}

func (c *collector) add(setting, from string, kind Kind, name string) {
	if !path.IsAbs(name) {
		return
	}
	name = path.Clean(name)
	if key := string(kind) + name; !c.seen[key] {
		c.seen[key] = true
		c.places = append(c.places, Place{Setting: setting, From: from, Kind: kind, Path: name})
	}
}

func (c *collector) listen(setting, from, protocol string, number int, peers bool) {
	known := slices.ContainsFunc(c.ports, func(p Port) bool { return p.Number == number && p.Protocol == protocol })
	if number > 0 && number < 1<<16 && !known {
		c.ports = append(c.ports, Port{setting, from, protocol, number, peers})
	}
}

// port adds a port that a setting holds as a number.
func (c *collector) port(name string) {
	if value, from := c.get(name); from != "" {
		n, _ := strconv.Atoi(value)
		c.listen(name, from, "tcp", n, false)
	}
}

// in makes a name of a setting absolute; "" stays.
func in(dir, name string) string {
	if name == "" || path.IsAbs(name) || dir == "" {
		return name
	}
	return path.Join(dir, name)
}

// file adds what a setting names, relative to a directory.
func (c *collector) file(kind Kind, dir string, names ...string) {
	for _, name := range names {
		value, from := c.get(name)
		if from != "" && value != "NULL" { // as secure_file_priv says that there is none
			c.add(name, from, kind, in(dir, value))
		}
	}
}

// list adds what a setting names, by a separator.
func (c *collector) list(kind Kind, dir, separator, name string) {
	value, from := c.get(name)
	for one := range strings.SplitSeq(value, separator) {
		c.add(name, from, kind, in(dir, strings.Trim(strings.TrimSpace(one), `"'`)))
	}
}
