// Package yamlfile reads the YAML files of database servers, mongod.conf and cassandra.yaml, where a setting that is
// not understood must not count as one that is not there. Package options reads what finds a server, more leniently.
//
//	f := yamlfile.Read("/etc/mongod.conf", text)
//	s, set, err := f.Get("net.maxIncomingConnections")
//
// A File is read by any number of goroutines.
package yamlfile

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"bulkhead/internal/engine/options"
)

// File has the settings of a file by their whole names ("net.port"), with their lines. The zero value has none.
type File struct {
	Err    error // why the file is not known
	name   string
	set    map[string]options.Setting
	nodes  map[string]bool // names of mappings
	unread map[string]bool // names of what is not read here, and of what is there twice: nothing below is known
	opened map[string]bool // names of mappings, which can have more than the file shows: `<<` and `__exec`
}

// ErrNoMapping says that a text is YAML of another kind: mongod's files of 2.4 are such.
var ErrNoMapping = errors.New("it is no YAML with names and values")

// Read reads the text of a file.
func Read(name string, text []byte) *File {
	f := &File{name: name, set: map[string]options.Setting{}, nodes: map[string]bool{}, unread: map[string]bool{},
		opened: map[string]bool{}}
	var doc yaml.Node
	err := yaml.Unmarshal(text, &doc)
	switch {
	case err != nil && isLines(string(text)):
		f.Err = fmt.Errorf("%s: %w", name, ErrNoMapping)
	case err != nil:
		f.Err = fmt.Errorf("%s: %w", name, err)
	case doc.Kind == 0: // nothing but comments
	case doc.Content[0].Kind == yaml.MappingNode:
		f.add("", doc.Content[0], 0)
	case doc.Content[0].ShortTag() != "!!null":
		f.Err = fmt.Errorf("%s: %w", name, ErrNoMapping)
	}
	return f
}

// isLines says whether a text is lines of NAME = VALUE alone. With a comment between them it is no YAML.
func isLines(text string) bool {
	for line := range strings.Lines(text) {
		name, _, is := strings.Cut(line, "=")
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' && (!is || strings.ContainsAny(name, ":{[#")) {
			return false
		}
	}
	return true
}

// add adds what a mapping has. Of what is not read here the name stays, so that it is not known.
func (f *File) add(above string, of *yaml.Node, depth int) {
	const deepest = 16
	for i := 0; i+1 < len(of.Content); i += 2 {
		key, value := of.Content[i], of.Content[i+1]
		name := above + key.Value
		_, again := f.set[name]
		switch {
		case key.Kind != yaml.ScalarNode || key.Value == "<<" || key.Value == "__exec" || key.Value == "__rest":
			f.opened[strings.TrimSuffix(above, ".")] = true
		case again || f.nodes[name]:
			f.unread[name] = true
		case value.Kind == yaml.MappingNode && depth < deepest:
			f.nodes[name] = true
			f.add(name+".", value, depth+1)
		case value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null":
		case value.Kind == yaml.ScalarNode:
			f.set[name] = options.Setting{Value: value.Value, From: f.name + ":" + strconv.Itoa(value.Line)}
		default:
			f.unread[name] = true
		}
	}
}

// Get gives a setting, and says whether the file sets it. The error says why that is not known.
func (f *File) Get(name string) (s options.Setting, set bool, err error) {
	if f.Err != nil {
		return s, false, f.Err
	}
	unread := func(part string) error {
		return fmt.Errorf("%s has %s in a form that is not read here", f.name, part)
	}
	s, set = f.set[name]
	for part := name; part != ""; part = parent(part) {
		if f.unread[part] {
			return options.Setting{}, false, unread(part)
		}
	}
	if set {
		return s, true, nil
	}
	if f.nodes[name] {
		return s, false, unread(name)
	}
	for part := name; part != ""; part = parent(part) {
		if above := parent(part); f.opened[above] {
			return s, false, unread(cmp.Or(above, "all"))
		}
	}
	return s, false, nil
}

// parent is the name of the mapping that a name is in, "" of the whole file.
func parent(name string) string { return name[:max(0, strings.LastIndexByte(name, '.'))] }
