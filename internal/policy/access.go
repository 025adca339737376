package policy

import (
	"reflect"
	"slices"
	"strconv"
)

// Owner says who beside root may do something with a group: who owns the kernel's files for it, and with which mode.
type Owner struct {
	User, UnixGroup string // names or numbers; "" is root's
	May             []Right
	// Mode is the permissions of the files, Directory those of the directory, in octal; "" leaves the kernel's. Others
	// have no more of a file than the kernel gives its owner.
	Mode, Directory string
	Pos             Pos
	// Bounds are what may be set, and within what; nil is every limit. With them the agent alone sets limits for the
	// owner, and the kernel's files of limits stay root's.
	Bounds map[Key]Bound
	// UID and GID are the numbers of User and UnixGroup on a host; who reads the host sets them.
	UID, GID int
}

// Enters says whether the owner may bring processes into the group.
func (o Owner) Enters() bool {
	return slices.Contains(o.May, MayRun) || slices.Contains(o.May, MayMove)
}

// Sets says whether the owner may change its limits in the kernel's files.
func (o Owner) Sets() bool { return o.Has(MaySet) && o.Bounds == nil }

// Has says whether the owner may do something.
func (o Owner) Has(r Right) bool { return slices.Contains(o.May, r) }

// String is who the owner is, as chown(1) takes it: "oracle:dba".
func (o Owner) String() string {
	name := func(s string) string {
		if s == "" {
			return "root"
		}
		return s
	}
	return name(o.User) + ":" + name(o.UnixGroup)
}

// Right is something that an owner may do.
type Right string

// The rights. Run and move are one for the kernel: both write to the files through which processes come in. Freeze is
// the agent's alone.
const (
	MayRun    Right = "run"
	MayMove   Right = "move"
	MaySet    Right = "set"
	MayFreeze Right = "freeze"
)

// Rights are all rights, as a policy writes them.
var Rights = []string{string(MayRun), string(MayMove), string(MaySet), string(MayFreeze)}

// Permissions are Mode or Directory as a number; ok is false when it is not said.
func Permissions(mode string) (bits int, ok bool) {
	n, err := strconv.ParseUint(mode, 8, 12)
	return int(n), err == nil
}

// Bound is within what an owner may set a limit. Lowest and Highest are of the limit's own type and include their ends;
// nil is no bound on that side, and Unlimited as Highest allows to lift the limit. For limits that are sets of CPUs or
// nodes, Highest is the set that theirs is to be in.
type Bound struct{ Lowest, Highest Value }

// String is how it is written.
func (b Bound) String() string {
	text := func(v Value) string {
		if v == nil {
			return ""
		}
		return v.String()
	}
	if _, set := b.Highest.(IDs); set {
		return text(b.Highest)
	}
	return text(b.Lowest) + ".." + text(b.Highest)
}

// Allows says whether a value is within the bound. A value of another type is not: who compares percentages makes them
// bytes before.
func (b Bound) Allows(v Value) bool {
	if set, is := v.(IDs); is {
		all, same := b.Highest.(IDs)
		return same && set.Subset(all.Set)
	}
	if v == (Unlimited{}) {
		return b.Highest == (Unlimited{})
	}
	if b.Highest == (Unlimited{}) {
		b.Highest = nil
	}
	n, comparable := number(v)
	for _, end := range []Value{b.Lowest, b.Highest} {
		comparable = comparable && (end == nil || reflect.TypeOf(v) == reflect.TypeOf(end))
	}
	lowest, below := number(b.Lowest)
	highest, above := number(b.Highest)
	return comparable && (!below || n >= lowest) && (!above || n <= highest)
}

// number is a value as a number of its own unit, if it is one.
func number(v Value) (int64, bool) {
	if r := reflect.ValueOf(v); v != nil && r.Kind() == reflect.Int64 {
		return r.Int(), true
	}
	return 0, false
}
