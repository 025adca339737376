// Package outside has a value written by a process outside of the sandbox in which systemd runs the agent: there
// /etc/fstab cannot be written, and what is mounted again is so for the agent alone.
package outside

import (
	"context"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
)

// Caller has values written outside of this process.
type Caller interface {
	// Write has a value written, and waits for it. It says no where this process is in no sandbox, and so is to write
	// the value itself.
	Write(ctx context.Context, t change.Target, value string) (written bool, err error)
	// Settle ends what still writes: a process that outlived whoever asked for it.
	Settle(ctx context.Context) error
}

// Sandboxed says whether this process sees other mounts than the first process of the host.
func Sandboxed(root *sysroot.FS) bool {
	own, err := root.Readlink("/proc/self/ns/mnt")
	first, err2 := root.Readlink("/proc/1/ns/mnt")
	return err == nil && err2 == nil && own != first
}

// Actuator is one whose values are written outside of the sandbox where there is one. Its Undo waits for whoever
// writes still.
type Actuator struct {
	change.Actuator
	Kind   change.Kind
	Caller Caller // nil is nobody: this process writes
}

// Write writes the value, here or outside.
func (a Actuator) Write(ctx context.Context, addr, value string) error {
	if a.Caller != nil {
		if written, err := a.Caller.Write(ctx, change.Target{Kind: a.Kind, Addr: addr}, value); written || err != nil {
			return err
		}
	}
	return a.Actuator.Write(ctx, addr, value)
}

// Undo gives the old value back, after whoever writes still has ended.
func (a Actuator) Undo(ctx context.Context, c change.Change) (bool, error) {
	if a.Caller != nil {
		if err := a.Caller.Settle(ctx); err != nil {
			return false, err
		}
	}
	if parts, is := a.Actuator.(Parted); is && parts.Half(c) {
		return true, change.Set(ctx, a, c.Target, c.Undo)
	}
	undone, err := change.Restore(ctx, a, c)
	if left, is := a.Actuator.(Leaver); err == nil && is && left.Left(c.Addr) {
		now, err := a.Read(ctx, c.Addr)
		if err != nil {
			return undone, err
		}
		return undone, a.Write(ctx, c.Addr, now)
	}
	return undone, err
}

// Leaver is implemented by actuators that leave something behind when they are killed while they write. The next Write
// takes it away.
type Leaver interface{ Left(addr string) bool }

// Parted is implemented by actuators whose values are in several places each, of which a Write that is cut off leaves
// some as they were. Then there is no one value to read.
type Parted interface{ Half(c change.Change) bool }

// AfterBoot is the change: a file of the host set the value again.
func (Actuator) AfterBoot(c change.Change) change.Change { return c }

// Loaded is an Actuator whose values somebody has to read.
type Loaded struct {
	Actuator
	Reader change.Loader
}

// Loader is who reads them.
func (l Loaded) Loader() change.Loader { return l.Reader }
