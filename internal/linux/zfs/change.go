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

// Create makes a file system. ZFS mounts it where canmount is not off or noauto.
func (t Tools) Create(ctx context.Context, properties map[string]string, name string) error {
	args := []string{"create"}
	for _, property := range slices.Sorted(maps.Keys(properties)) {
		args = append(args, "-o", property+"="+properties[property])
	}
	_, err := t.Run(ctx, t.ZFS, append(args, name)...)
	return err
}

// Clone makes a file system that begins with what a snapshot of the same pool holds. It takes no property that was set
// on the snapshot's own file system. ZFS mounts it where canmount is not off or noauto.
func (t Tools) Clone(ctx context.Context, properties map[string]string, snapshot, name string) error {
	args := []string{"clone"}
	for _, property := range slices.Sorted(maps.Keys(properties)) {
		args = append(args, "-o", property+"="+properties[property])
	}
	_, err := t.Run(ctx, t.ZFS, append(args, snapshot, name)...)
	return err
}

// Mount mounts a file system at its mountpoint.
func (t Tools) Mount(ctx context.Context, name string) error {
	_, err := t.Run(ctx, t.ZFS, "mount", name)
	return err
}

// Unmount unmounts a file system; ZFS refuses it while somebody has a file of it open.
func (t Tools) Unmount(ctx context.Context, name string) error {
	_, err := t.Run(ctx, t.ZFS, "unmount", name)
	return err
}

// DestroyFilesystem removes one file system with all that is in it. ZFS refuses one that has snapshots or others below.
// The file system has a property with a value that only its maker knows: no other is destroyed.
func (t Tools) DestroyFilesystem(ctx context.Context, name, property, value string) error {
	list, err := t.Datasets(ctx, name)
	if err != nil {
		return err
	}
	if len(list) != 1 || list[0].Properties[property] != (Property{value, "local"}) || value == "" {
		return fmt.Errorf("destroy %q: it is not what was made", name)
	}
	_, err = t.Run(ctx, t.ZFS, "destroy", name)
	return err
}

// CreatePool makes a pool by the arguments of zpool create. Devices that hold something are refused
// by zpool(8), as long as nothing forces it.
func (t Tools) CreatePool(ctx context.Context, arguments []string) error {
	_, err := t.Run(ctx, t.Zpool, append([]string{"create"}, arguments...)...)
	return err
}
