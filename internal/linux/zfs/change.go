package zfs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ErrPool says that a name is that of a pool, which nothing here destroys.
var ErrPool = errors.New("it is a pool")

// options are properties as -o takes them, in the order of their names.
func options(properties map[string]string) []string {
	var args []string
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		args = append(args, "-o", name+"="+properties[name])
	}
	return args
}

// Snapshot makes snapshots, "DATASET@NAME", all at one moment or none: they are of one pool.
func (t Tools) Snapshot(ctx context.Context, properties map[string]string, names ...string) error {
	_, err := t.Run(ctx, t.ZFS, append(append([]string{"snapshot"}, options(properties)...), names...)...)
	return err
}

// Create makes a file system whose parent is there.
func (t Tools) Create(ctx context.Context, properties map[string]string, name string) error {
	_, err := t.Run(ctx, t.ZFS, append(append([]string{"create"}, options(properties)...), name)...)
	return err
}

// Clone makes a file system from a snapshot, and mounts it where it has a mount point. It takes no property from the
// snapshot's dataset: what it is to have is named, or inherited from where it lies.
func (t Tools) Clone(ctx context.Context, properties map[string]string, snapshot, name string) error {
	_, err := t.Run(ctx, t.ZFS, append(append([]string{"clone"}, options(properties)...), snapshot, name)...)
	return err
}

// Set sets properties of several datasets or snapshots, one after the other.
func (t Tools) Set(ctx context.Context, properties map[string]string, names ...string) error {
	args := []string{"set"}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		args = append(args, name+"="+properties[name])
	}
	_, err := t.Run(ctx, t.ZFS, append(args, names...)...)
	return err
}

// Destroy removes one snapshot or file system, which has nothing below it and no dependants: ZFS refuses it else. It is
// never that of a pool.
func (t Tools) Destroy(ctx context.Context, name string) error {
	if !strings.ContainsAny(name, "/@") {
		return fmt.Errorf("destroy %q: %w", name, ErrPool)
	}
	_, err := t.Run(ctx, t.ZFS, "destroy", name)
	return err
}
