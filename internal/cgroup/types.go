// Package cgroup alone touches the cgroup file systems: reading and writing knob files, making
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

	"bulkhead/internal/change"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
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

// Kinds of this package. The address of a file, and of what a directory of v2 hands to its children, is File.String; of
// a directory it is Dir.String, and of a membership the process and the hierarchy: "4711@88123 cpu". A directory has
// the value There or none, a membership the path of a directory; controllers are a list of v1 names, and what is
// written has a sign before each: "+cpu -memory".
const (
	KindFile        change.Kind = "cgroup file"
	KindDir         change.Kind = "directory"
	KindMembership  change.Kind = "membership"
	KindControllers change.Kind = "controllers"
)

// SubtreeControl lists, on v2, the controllers that a directory hands to its children.
const SubtreeControl = "cgroup.subtree_control"

// There is the value of a directory that exists.
const There = "there"

// Target is the directory as something to make or remove.
func (d Dir) Target() change.Target { return change.Target{Kind: KindDir, Addr: d.String()} }

// ParseDir is the inverse of Dir.String.
func ParseDir(text string) (d Dir, ok bool) {
	d.Hierarchy, d.Path, ok = strings.Cut(text, ":")
	return d, ok && strings.HasPrefix(d.Path, "/")
}

// Membership is where a process is in a hierarchy.
func Membership(id procfs.ID, hierarchy string) change.Target {
	return change.Target{Kind: KindMembership, Addr: id.Text() + " " + hierarchy}
}

// Member is the inverse of Membership.
func Member(t change.Target) (id procfs.ID, hierarchy string, ok bool) {
	if t.Kind != KindMembership {
		return id, "", false
	}
	who, hierarchy, ok := strings.Cut(t.Addr, " ")
	id, err := procfs.ParseID(who)
	return id, hierarchy, ok && err == nil
}

// FileOf is the file of a target that goes with its directory: a knob file, its owner, or what hands controllers down.
func FileOf(t change.Target) (f File, ok bool) {
	switch t.Kind {
	case KindFile, KindOwner, KindControllers, KindOption:
		return ParseFile(t.Addr)
	}
	return f, false
}

// NamedFile is FileOf, and for an attribute of a disk's queue the name that it has among files, in no directory.
func NamedFile(t change.Target) (f File, ok bool) {
	if number, name, is := strings.Cut(t.Addr, "/"); is && t.Kind == blockdev.KindQueue {
		return File{Name: queuePrefix + name, Key: number}, true
	}
	return FileOf(t)
}

// DirOf is the directory of a target of kind KindDir.
func DirOf(t change.Target) (d Dir, ok bool) {
	if t.Kind != KindDir {
		return d, false
	}
	return ParseDir(t.Addr)
}

// Target says how a file is written that a step or record names. Disks and mounts have attributes which they name like
// files of a hierarchy's top directory; owners have names beside the files of a group.
func (f File) Target() change.Target {
	attribute, queue := strings.CutPrefix(f.Name, queuePrefix)
	switch {
	case queue && f.Path == "/" && f.Key != "":
		return blockdev.QueueTarget(f.Key, attribute)
	case f.Name == FavorDynmods && f.Path == "/":
		return change.Target{Kind: KindOption, Addr: f.String()}
	case strings.HasPrefix(f.Name, ownerPrefix):
		return change.Target{Kind: KindOwner, Addr: f.String()}
	case f.Name == SubtreeControl:
		return change.Target{Kind: KindControllers, Addr: f.String()}
	}
	return change.Target{Kind: KindFile, Addr: f.String()}
}

// ParseFile is the inverse of File.String.
func ParseFile(text string) (f File, ok bool) {
	hierarchy, at, ok := strings.Cut(text, ":")
	dir, name := path.Split(at)
	f.Dir = Dir{Hierarchy: hierarchy, Path: path.Clean(dir)}
	if rest, keyed := strings.CutSuffix(name, "]"); keyed {
		name, f.Key, keyed = strings.Cut(rest, "[")
		ok = ok && keyed
	}
	f.Name = name
	return f, ok && strings.HasPrefix(at, "/") && name != ""
}

// queuePrefix begins the names of attributes of a disk's queue.
const queuePrefix = "queue."

// The attributes of a disk's queue as steps and records name them, with the disk as key.
const (
	QueueScheduler = queuePrefix + blockdev.QueueScheduler
	QueueWriteBack = queuePrefix + blockdev.QueueWriteBack
)

// String gives "cpu:/bulkhead/db/cpu.shares", with the key in brackets if there is one.
func (f File) String() string {
	s := f.Hierarchy + ":" + path.Join(f.Path, f.Name)
	if f.Key != "" {
		s += "[" + f.Key + "]"
	}
	return s
}

// Processes is what Move must know about a process beyond its pid.
// *host.Host has it.
type Processes interface {
	// Alive says whether the process still runs and its pid is still its own.
	Alive(id procfs.ID) bool
	// Tasks gives the threads of a process.
	Tasks(pid int) ([]procfs.Task, error)
	// Hold watches whether a process keeps its number. Errors: host.ErrExited.
	Hold(id procfs.ID) (procfs.Hold, error)
	// Birthplace gives the process that has a number now, and the groups that it was born in.
	Birthplace(pid int) (procfs.ID, map[string]string, error)
}
