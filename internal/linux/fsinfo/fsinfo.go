// Package fsinfo asks file systems how they were made. Each call opens a directory, and waits as long as its device
// does: callers bound it.
package fsinfo

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// geometry is struct xfs_fsop_geom_v1 of linux/xfs_fs.h.
type geometry struct {
	_     [92]byte
	flags uint32
	_     [16]byte
}

const (
	geometryRequest = 0x80705864 // XFS_IOC_FSGEOMETRY_V1
	version5        = 1 << 15    // XFS_FSOP_GEOM_FLAGS_V5SB
	noCOWFlag       = 0x00800000 // FS_NOCOW_FL of linux/fs.h
)

// XFSVersion4 says whether the XFS on which a directory lies has version 4, without checksums of its metadata.
func XFSVersion4(dir string) (bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var g geometry
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), geometryRequest, uintptr(unsafe.Pointer(&g)))
	if errno != 0 {
		return false, fmt.Errorf("ask for the geometry of %s: %w", dir, errno)
	}
	return g.flags&version5 == 0, nil
}

// NoCOW says whether files that are made in a directory of btrfs are written in place.
func NoCOW(dir string) (bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return false, err
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return false, fmt.Errorf("ask for the flags of %s: %w", dir, err)
	}
	return flags&noCOWFlag != 0, nil
}

// Size is how many bytes the regular files below a directory have. It follows no symbolic links below it, counts a file
// with several names as often, and takes as long as it takes to list them, or until ctx ends. Files that go meanwhile
// are no error.
func Size(ctx context.Context, dir string) (size int64, err error) {
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return 0, err
	}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, fs.ErrNotExist) && path != dir:
			return nil
		case err != nil || !d.Type().IsRegular():
			return err
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return size, err
}
