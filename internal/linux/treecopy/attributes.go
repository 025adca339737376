package treecopy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Like gives a file the owner, mode and extended attributes of another one, and not its times.
func Like(from, to string) error {
	e := &entry{path: from}
	if err := unix.Lstat(from, &e.stat); err != nil {
		return fmt.Errorf("look at %q: %w", from, err)
	}
	var now unix.Stat_t
	if err := unix.Lstat(to, &now); err != nil {
		return fmt.Errorf("look at %q: %w", to, err)
	}
	e.stat.Atim, e.stat.Mtim = now.Atim, now.Mtim
	return attributes(e, to)
}

// Owner gives the user and group of a file.
func Owner(name string) (uid, gid int, err error) {
	var s unix.Stat_t
	err = unix.Lstat(name, &s)
	return int(s.Uid), int(s.Gid), err
}

// Identity tells a directory or file from every other one, under whatever name: its inode, and its time of birth, which
// unlike the number of the device is the same after a boot. Where the file system keeps none it is that number.
func Identity(name string) (string, error) {
	var s unix.Statx_t
	const want = unix.STATX_INO | unix.STATX_BTIME
	if err := unix.Statx(unix.AT_FDCWD, name, unix.AT_SYMLINK_NOFOLLOW, want, &s); err != nil {
		return "", &fs.PathError{Op: "look at", Path: name, Err: err}
	}
	if s.Mask&unix.STATX_BTIME == 0 {
		return fmt.Sprintf("inode %d of device %d:%d", s.Ino, s.Dev_major, s.Dev_minor), nil
	}
	return fmt.Sprintf("inode %d made at %d.%09d", s.Ino, s.Btime.Sec, s.Btime.Nsec), nil
}

// immutable is FS_IMMUTABLE_FL (include/uapi/linux/fs.h): what `chattr +i` sets.
const immutable = 0x10

// Immutable has a directory take no file, not even root's, or take them again. Mounting over it is not hindered. Not
// every file system can do that.
func Immutable(dir string, on bool) error {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	is := flags&immutable != 0
	if err == nil && is != on {
		err = unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags^immutable))
	}
	if err != nil {
		return fmt.Errorf("set the flag \"immutable\" of %q: %w", dir, err)
	}
	return nil
}

// Free gives what a file system has free for root, in bytes.
func Free(dir string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("ask for the room at %q: %w", dir, err)
	}
	return int64(s.Bfree) * s.Bsize, nil //nolint:gosec // blocks of a disk
}

// attributes gives a name the owner, attributes, mode and times of an entry, in this order: each undoes some of a later
// one.
func attributes(e *entry, to string) error {
	if err := os.Lchown(to, int(e.stat.Uid), int(e.stat.Gid)); err != nil {
		return err
	}
	want, err := xattrs(e.path)
	if err != nil {
		return err
	}
	for name, value := range want {
		if err := unix.Lsetxattr(to, name, value, 0); err != nil {
			return fmt.Errorf("set the attribute %s of %q: %w", name, to, err)
		}
	}
	if e.kind() != unix.S_IFLNK {
		if err := unix.Chmod(to, e.stat.Mode&0o7777); err != nil {
			return fmt.Errorf("set the mode of %q: %w", to, err)
		}
	}
	times := []unix.Timespec{e.stat.Atim, e.stat.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, to, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fmt.Errorf("set the times of %q: %w", to, err)
	}
	return nil
}

// xattrs are the extended attributes that a copy keeps: labels, capabilities, ACLs and a user's own.
func xattrs(name string) (map[string][]byte, error) {
	n, err := unix.Llistxattr(name, nil)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	list := make([]byte, n)
	if err == nil {
		n, err = unix.Llistxattr(name, list)
	}
	if err != nil {
		return nil, fmt.Errorf("list the attributes of %q: %w", name, err)
	}
	kept := map[string][]byte{}
	for attribute := range strings.SplitSeq(string(list[:n]), "\x00") {
		keep := false
		for _, prefix := range []string{"security.", "user.", "trusted.", "system.posix_acl_"} {
			keep = keep || strings.HasPrefix(attribute, prefix)
		}
		if !keep {
			continue
		}
		value := make([]byte, 64<<10) // the most that Linux allows
		n, err := unix.Lgetxattr(name, attribute, value)
		if err != nil {
			return nil, fmt.Errorf("read the attribute %s of %q: %w", attribute, name, err)
		}
		kept[attribute] = value[:n]
	}
	return kept, nil
}
