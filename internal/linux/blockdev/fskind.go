package blockdev

import (
	"slices"
	"strings"
)

// FilesystemKind says what stands behind a filesystem that is on no block device of its own.
type FilesystemKind string

// The kinds of filesystem told apart here.
const (
	OnDevice  FilesystemKind = "device"  // ext4, XFS, btrfs, …: on block devices of this host
	OnNetwork FilesystemKind = "network" // served by another host, or by the host of this virtual machine
	InMemory  FilesystemKind = "memory"
	OfKernel  FilesystemKind = "kernel" // /proc and its like: holds no files
	OfProcess FilesystemKind = "fuse"   // served by a process of this host
	OnOthers  FilesystemKind = "overlay"
	OnPool    FilesystemKind = "zfs"
	OnUnknown FilesystemKind = "unknown"
)

var filesystemKinds = []struct {
	kind  FilesystemKind
	types []string
}{
	{OnDevice, []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "bcachefs", "f2fs", "jfs", "reiserfs", "vfat", "exfat",
		"ntfs3", "fuseblk",
		"iso9660", "udf", "squashfs", "erofs", "gfs2", "ocfs2", "nilfs2", "hfsplus"}},
	{OnNetwork, []string{"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "9p", "virtiofs", "lustre", "gpfs", "afs",
		"beegfs", "orangefs", "vboxsf"}},
	{InMemory, []string{"tmpfs", "ramfs", "devtmpfs", "hugetlbfs", "rootfs"}},
	{OfKernel, []string{"proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs", "bpf", "devpts", "mqueue",
		"securityfs", "configfs",
		"efivarfs", "pstore", "autofs", "binfmt_misc", "fusectl", "nsfs", "rpc_pipefs", "selinuxfs", "nfsd",
		"resctrl"}},
	{OnOthers, []string{"overlay", "aufs", "ecryptfs"}},
	{OnPool, []string{"zfs"}},
}

// KindOfFilesystem tells by the type of a mount what stands behind it.
func KindOfFilesystem(kind string) FilesystemKind {
	for _, k := range filesystemKinds {
		if slices.Contains(k.types, kind) {
			return k.kind
		}
	}
	if strings.HasPrefix(kind, "fuse") {
		return OfProcess
	}
	return OnUnknown
}
