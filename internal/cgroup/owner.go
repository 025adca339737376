package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"bulkhead/internal/change"
)

// KindOwner is the kind of owner and mode of a file of a group. Its address is the file with ownerPrefix before its
// name, as File.String writes it: "cpu:/bulkhead/db/owner:tasks". A value is "54321:54322 0664".
const KindOwner change.Kind = "owner"

// ownerPrefix begins the names of owners beside the names of files.
const ownerPrefix = "owner:"

// Owners reads and writes who owns the files of groups, and with which mode.
type Owners struct{ Tree *Tree }

// OwnedDir and OwnedRest stand for the directory itself and for all its files but those through which processes come
// in.
const (
	OwnedDir  = ownerPrefix + "."
	OwnedRest = ownerPrefix + "*"
)

// OwnerOf names who owns a file of a group.
func OwnerOf(name string) string { return ownerPrefix + name }

// Owned is the inverse of OwnerOf.
func Owned(name string) (file string, ok bool) { return strings.CutPrefix(name, ownerPrefix) }

// MemberFiles are the files through which processes come in. libcgroup counts tasks alone among them on cgroup v1; on
// v2 they are what cgroups(7), "Delegating a hierarchy", names.
func MemberFiles(version int) []string {
	if version == 1 {
		return []string{"tasks"}
	}
	return []string{"cgroup.procs", "cgroup.threads"}
}

// OwnerFiles are all names of owners that a group has.
func OwnerFiles(version int) []string {
	names := []string{OwnedDir, OwnedRest}
	for _, name := range MemberFiles(version) {
		names = append(names, OwnerOf(name))
	}
	return names
}

// Ownership is who owns a file, and with which mode.
type Ownership struct {
	UID, GID int
	// Mode is the permissions. Keep leaves them as they are.
	Mode int
}

// Keep is the mode that is there already.
const Keep = -1

// String is "54321:54322 0664", or "54321:54322 -" where the mode stays.
func (o Ownership) String() string {
	if o.Mode == Keep {
		return fmt.Sprintf("%d:%d -", o.UID, o.GID)
	}
	return fmt.Sprintf("%d:%d 0%03o", o.UID, o.GID, o.Mode)
}

// parseOwnership is the inverse of String.
func parseOwnership(text string) (o Ownership, ok bool) {
	owner, mode, ok := strings.Cut(text, " ")
	uid, gid, two := strings.Cut(owner, ":")
	if !ok || !two || uid == "" || uid[0] < '0' || uid[0] > '9' {
		return o, false
	}
	var err1, err2, err3 error
	o.UID, err1 = strconv.Atoi(uid)
	o.GID, err2 = strconv.Atoi(gid)
	o.Mode = Keep
	if mode != "-" {
		var n uint64
		n, err3 = strconv.ParseUint(mode, 8, 12)
		o.Mode = int(n)
	}
	return o, err1 == nil && err2 == nil && err3 == nil && o.UID >= 0 && o.GID >= 0
}

// masked is the mode that a file gets: others have no more than the kernel has given its owner, so that a file that
// nobody can write to does not become writable by chmod.
func (o Ownership) masked(now int) int {
	if o.Mode == Keep {
		return now
	}
	owner := now & 0o700
	return o.Mode & (owner | owner>>3 | owner>>6)
}

// holds says whether a file that is owned so is as o asks.
func (o Ownership) holds(now Ownership) bool {
	return o.UID == now.UID && o.GID == now.GID && o.masked(now.Mode) == now.Mode
}

// parseListing reads what OwnedRest reads as: "name uid:gid mode" of each file, joined by ", ".
func parseListing(text string) (all map[string]Ownership, ok bool) {
	all = map[string]Ownership{}
	for entry := range strings.SplitSeq(text, ", ") {
		name, owner, two := strings.Cut(entry, " ")
		o, fine := parseOwnership(owner)
		if !two || !fine || !plainName(name) {
			return nil, false
		}
		all[name] = o
	}
	return all, true
}

// Unowned is what the owners in a text, of one file or a listing, would be if nobody had been given the files: root,
// and the modes that the kernel gives them.
func Unowned(text string) string {
	if o, ok := parseOwnership(text); ok {
		return Ownership{Mode: o.Mode & 0o755}.String()
	}
	all, ok := parseListing(text)
	if !ok {
		return text
	}
	for name, o := range all {
		owner := o.Mode & 0o600
		mode := owner | (owner&0o400)>>3 | (owner&0o400)>>6
		if name == worldWritable {
			mode = o.Mode & 0o222
		}
		all[name] = Ownership{Mode: mode}
	}
	return listing(all)
}

// worldWritable is the one file of a cgroup v1 directory that everybody may write to on some kernels, and its owner
// alone on others (kernel/cgroup/cgroup-v1.c; seen as 0200 on 6.18).
const worldWritable = "cgroup.event_control"

func listing(all map[string]Ownership) string {
	entries := make([]string, 0, len(all))
	for _, file := range slices.Sorted(maps.Keys(all)) {
		entries = append(entries, file+" "+all[file].String())
	}
	return strings.Join(entries, ", ")
}

// SameOwner says whether a group's files are owned as asked, for both forms of a value: one owner for all, or a
// listing.
func SameOwner(want, got string) bool {
	if want == got {
		return true
	}
	one, single := parseOwnership(want)
	if now, ok := parseOwnership(got); ok {
		return single && one.holds(now)
	}
	now, ok := parseListing(got)
	if !ok {
		return false
	}
	if single {
		for _, o := range now {
			if !one.holds(o) {
				return false
			}
		}
		return true
	}
	wanted, ok := parseListing(want)
	for name, o := range wanted {
		if there, has := now[name]; has && !o.holds(there) {
			return false
		}
	}
	return ok
}

// owners is what a Directory has that knows who owns its files. "." is the directory itself.
type owners interface {
	Owner(name string) (Ownership, error)
	SetOwner(name string, o Ownership) error
}

var errNoOwners = errors.New("owners are not known here")

// ownedFiles are the files that a name stands for.
func (o Owners) files(d Dir, dir Directory, name string) ([]string, error) {
	file, _ := Owned(name)
	if name != OwnedRest {
		return []string{file}, nil
	}
	_, files, err := dir.Names()
	if err != nil {
		return nil, o.Tree.dirError("list", d, err)
	}
	version := 2
	if o.Tree.Version(d) == 1 {
		version = 1
	}
	members := MemberFiles(version)
	files = slices.DeleteFunc(files, func(f string) bool { return slices.Contains(members, f) })
	slices.Sort(files)
	return files, nil
}

// Of reads all owners of a directory by the names of OwnerFiles. It leaves out what cannot be read.
func (o Owners) Of(d Dir, version int) map[string]string {
	dir, err := o.Tree.open("read owners of", d)
	if err != nil {
		return nil
	}
	defer dir.Close()
	values := map[string]string{}
	for _, name := range OwnerFiles(version) {
		if text, err := o.read(d, dir, name); err == nil {
			values[name] = text
		}
	}
	return values
}

// Read reads who owns what an address stands for: one owner, or for OwnedRest a listing.
func (o Owners) Read(_ context.Context, addr string) (string, error) {
	f, dir, err := o.open("read owner of", addr)
	if err != nil {
		return "", err
	}
	defer dir.Close()
	return o.read(f.Dir, dir, f.Name)
}

// open opens the directory of an address.
func (o Owners) open(op, addr string) (File, Directory, error) {
	f, ok := ParseFile(addr)
	if name, is := Owned(f.Name); !ok || !is || f.Key != "" || name != "." && !plainName(name) {
		return f, nil, &Error{Op: op, Path: addr, Kind: ErrInvalid, Cause: errBadName}
	}
	dir, err := o.Tree.open(op, f.Dir)
	return f, dir, err
}

func (o Owners) read(d Dir, dir Directory, name string) (string, error) {
	known, ok := dir.(owners)
	if !ok {
		return "", o.Tree.fileError("read owner of", d, name, errNoOwners)
	}
	files, err := o.files(d, dir, name)
	if err != nil {
		return "", err
	}
	all := make(map[string]Ownership, len(files))
	for _, file := range files {
		owner, err := known.Owner(file)
		switch {
		case errors.Is(err, fs.ErrNotExist) && name == OwnedRest:
			continue // it went with its controller meanwhile
		case err != nil:
			return "", o.Tree.fileError("read owner of", d, file, err)
		case name != OwnedRest:
			return owner.String(), nil
		}
		all[file] = owner
	}
	return listing(all), nil
}

var errNoOwner = errors.New(`an owner is written as "UID:GID MODE"`)

// Write changes owner and mode of what an address stands for, to one owner or to those of a listing.
func (o Owners) Write(_ context.Context, addr, value string) error {
	f, dir, err := o.open("change owner of", addr)
	if err != nil {
		return err
	}
	defer dir.Close()
	refuse := func(cause error) error {
		return &Error{Op: "write", Path: o.Tree.Abs(f.Dir) + "/" + f.Name, Value: value, Kind: ErrInvalid, Cause: cause,
			wrote: true}
	}
	one, single := parseOwnership(value)
	listing, listed := parseListing(value)
	if !single && !listed {
		return refuse(errNoOwner)
	}
	known, ok := dir.(owners)
	if !ok {
		return refuse(errNoOwners)
	}
	files, err := o.files(f.Dir, dir, f.Name)
	if err != nil {
		return err
	}
	for _, file := range files {
		want, asked := one, single
		if !single {
			want, asked = listing[file]
		}
		if !asked {
			continue
		}
		now, err := known.Owner(file)
		if err == nil && single {
			want.Mode = want.masked(now.Mode)
		}
		if err == nil && want != now {
			err = known.SetOwner(file, want)
		}
		if err != nil && !(errors.Is(err, fs.ErrNotExist) && f.Name == OwnedRest) {
			return o.Tree.fileError("change owner of", f.Dir, file, err)
		}
	}
	return nil
}

// Same is SameOwner.
func (Owners) Same(_, want, got string) bool { return SameOwner(want, got) }

// Undo gives files their old owners back.
func (o Owners) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, o, c)
}

// Owner says who owns a file of the directory.
func (d *openDir) Owner(name string) (Ownership, error) {
	var stat unix.Stat_t
	var err error
	if name == "." {
		err = unix.Fstat(int(d.file.Fd()), &stat)
	} else {
		err = unix.Fstatat(int(d.file.Fd()), name, &stat, unix.AT_SYMLINK_NOFOLLOW)
	}
	runtime.KeepAlive(d.file)
	return Ownership{UID: int(stat.Uid), GID: int(stat.Gid), Mode: int(stat.Mode & 0o7777)}, err
}

// SetOwner changes owner and mode: the mode last, for chown(2) may take bits of it away.
func (d *openDir) SetOwner(name string, o Ownership) error {
	defer runtime.KeepAlive(d.file)
	fd := int(d.file.Fd())
	if name == "." {
		if err := unix.Fchown(fd, o.UID, o.GID); err != nil {
			return err
		}
		return unix.Fchmod(fd, uint32(o.Mode)) //nolint:gosec // twelve bits
	}
	if err := unix.Fchownat(fd, name, o.UID, o.GID, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.Fchmodat(fd, name, uint32(o.Mode), 0) //nolint:gosec // twelve bits; the files of a cgroup are no links
}
