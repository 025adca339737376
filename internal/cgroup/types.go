// Package cgroup is the only door to the cgroup file systems: reading and writing knob files, making
// and removing directories, moving and freezing processes, and what a group uses. It knows how the
// kernel behaves, not what a policy wants.
//
// A Tree is one look at the mounted hierarchies. It resolves every path below a hierarchy's mount
// with os.Root, so that no name leads out of it, and refuses a mount that is not a cgroup file system.
// The package cgroupfake puts a Tree over a model of the kernel; the package conformance holds the
// model against the real one.
package cgroup

import (
	"path"
	"strings"
)

// Dir is a directory of one hierarchy. Path starts with "/" and is relative to the mount.
type Dir struct {
	Hierarchy string `json:"hierarchy"` // host.Hierarchy.ID
	Path      string `json:"path"`
}

// String gives "cpu:/bulkhead/db".
func (d Dir) String() string { return d.Hierarchy + ":" + d.Path }

// Child is the directory of that name inside d.
func (d Dir) Child(name string) Dir {
	return Dir{Hierarchy: d.Hierarchy, Path: path.Join(d.Path, name)}
}

// Parent is the directory that holds d; the root's parent is the root.
func (d Dir) Parent() Dir { return Dir{Hierarchy: d.Hierarchy, Path: path.Dir(d.Path)} }

// File is the knob file of that name in d.
func (d Dir) File(name string) File { return File{Dir: d, Name: name} }

// relative is the path below the mount, "." for the mount itself.
func (d Dir) relative() string {
	if rel := strings.TrimPrefix(d.Path, "/"); rel != "" {
		return rel
	}
	return "."
}

// File is one knob file. Key picks one line of a file that holds a line per device ("8:16").
type File struct {
	Dir
	Name string `json:"name"`
	Key  string `json:"key,omitempty"`
}

// String gives "cpu:/bulkhead/db/cpu.shares", with the key in brackets if there is one.
func (f File) String() string {
	s := f.Hierarchy + ":" + path.Join(f.Path, f.Name)
	if f.Key != "" {
		s += "[" + f.Key + "]"
	}
	return s
}
