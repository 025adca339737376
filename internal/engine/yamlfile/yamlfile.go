// Package yamlfile reads the YAML files of database servers, mongod.conf and cassandra.yaml, where a setting that is
// not understood must not count as one that is not there. Package options reads what finds a server, more leniently.
//
//	f := yamlfile.Read("/etc/mongod.conf", text)
//	s, set, err := f.Get("net.maxIncomingConnections")
//
// A File is read by any number of goroutines.
package yamlfile

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"bulkhead/internal/engine/options"
)

// File has the settings of a file by their whole names ("net.port"), with their lines. The zero value has none.
type File struct {
	Err  error // why the file is not known
	name string
	set  map[string]options.Setting
}

// ErrNoMapping says that a text is YAML of another kind: mongod's files of 2.4 are such.
var ErrNoMapping = errors.New("it is no YAML with names and values")

// Read reads the text of a file.
func Read(name string, text []byte) *File {
	f := &File{name: name, set: map[string]options.Setting{}}
	var doc yaml.Node
	err := yaml.Unmarshal(text, &doc)
	switch {
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

// add adds what a mapping has. Of what is not read here the name stays, so that it is not known.
func (f *File) add(above string, of *yaml.Node, depth int) {
	const deepest = 16
	for i := 0; i+1 < len(of.Content); i += 2 {
		key, value := of.Content[i], of.Content[i+1]
		name := above + key.Value
		switch {
		case value.Kind == yaml.MappingNode && depth < deepest:
			f.add(name+".", value, depth+1)
		case value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null":
		case value.Kind == yaml.ScalarNode:
			f.set[name] = options.Setting{Value: value.Value, From: f.name + ":" + strconv.Itoa(value.Line)}
		default:
			f.set[name+"."] = options.Setting{}
		}
	}
}

// Get gives a setting, and says whether the file sets it. The error says why that is not known.
func (f *File) Get(name string) (s options.Setting, set bool, err error) {
	if f.Err != nil {
		return s, false, f.Err
	}
	if s, set = f.set[name]; set {
		return s, true, nil
	}
	for other := range f.set { // a list, an alias, or what is asked for when the server starts (__exec, __rest)
		if strings.HasPrefix(other, name+".") {
			return s, false, fmt.Errorf("%s has %s in a form that is not read here", f.name, name)
		}
	}
	return s, false, nil
}
