package zfs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Snapshot makes snapshots, "DATASET@NAME", all at one moment or none: they are of one pool.
func (t Tools) Snapshot(ctx context.Context, properties map[string]string, names ...string) error {
	args := []string{"snapshot"}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		args = append(args, "-o", name+"="+properties[name])
	}
	_, err := t.Run(ctx, t.ZFS, append(args, names...)...)
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

// Destroy removes one snapshot, which has no clones and no holds: ZFS refuses it else. It is never a dataset.
func (t Tools) Destroy(ctx context.Context, name string) error {
	if !strings.Contains(name, "@") {
		return fmt.Errorf("destroy %q: it is no snapshot", name)
	}
	_, err := t.Run(ctx, t.ZFS, "destroy", name)
	return err
}
