package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Owner says who beside root may do something with a group: who owns the kernel's files for it, and with which mode.
type Owner struct {
	User, UnixGroup string // names or numbers; "" is root's
	May             []Right
	// Mode is the permissions of the files, Directory those of the directory, in octal; "" leaves the kernel's. Others
	// have no more of a file than the kernel gives its owner.
	Mode, Directory string
	Pos             Pos
	// Bounds are what may be set, and within what; nil is every limit. With them the agent alone sets limits for the owner,
	// and the kernel's files of limits stay root's.
	Bounds map[Key]Bound
	// UID and GID are the numbers of User and UnixGroup on a host; who reads the host sets them.
	UID, GID int
}

// Right is something that an owner may do.
type Right string

// The rights. Run and move are one for the kernel: both write to the files through which processes come in. Freeze is the agent's alone.
const (
	MayRun    Right = "run"
	MayMove   Right = "move"
	MaySet    Right = "set"
	MayFreeze Right = "freeze"
)

var rights = []string{string(MayRun), string(MayMove), string(MaySet), string(MayFreeze)}

// Enters says whether the owner may bring processes into the group.
func (o Owner) Enters() bool {
	return slices.Contains(o.May, MayRun) || slices.Contains(o.May, MayMove)
}

// Sets says whether the owner may change its limits in the kernel's files.
func (o Owner) Sets() bool { return o.Has(MaySet) && o.Bounds == nil }

// Has says whether the owner may do something.
func (o Owner) Has(r Right) bool { return slices.Contains(o.May, r) }

// Permissions are Mode or Directory as a number; ok is false when it is not said.
func Permissions(mode string) (bits int, ok bool) {
	n, err := strconv.ParseUint(mode, 8, 12)
	return int(n), err == nil
}

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

const modePattern = `^0?[0-7]{3}$`

var modeRegexp = regexp.MustCompile(modePattern)

// ownerField is `owner:` of a group or a class.
func ownerField[T any](of func(*T) *[]Owner) FormKey[T] {
	o := ownerForm()
	one := o.Schema()
	return FormKey[T]{
		Name: "owner", Doc: "Who beside root may do what with the group: one block, or a list of them.", Schema: JSONSchema{"anyOf": []any{one, listOf(one)}},
		Read: func(v Item, into *T) { *of(into) = readOwners(v, o) },
	}
}

// ownerForm is one entry of `owner:`.
func ownerForm() Form[Owner] {
	account := func(name, doc string, of func(*Owner) *string) FormKey[Owner] {
		return FormKey[Owner]{
			Name: name, Doc: doc, Schema: accountSchema,
			Read: func(v Item, o *Owner) {
				text, ok := v.Text()
				if !ok {
					return
				}
				if strings.ContainsAny(text, " \t:/,{") || strings.HasPrefix(text, "-") {
					v.Fail("write one name or number", "%s: %q is not a user or group name", v.Name(), text)
				}
				*of(o) = text
			},
		}
	}
	mode := func(name, doc string, of func(*Owner) *string) FormKey[Owner] {
		return FormKey[Owner]{
			Name: name, Doc: doc, Schema: JSONSchema{"type": "string", "pattern": modePattern, "examples": []any{"0664"}},
			Read: func(v Item, o *Owner) {
				if text, ok := v.Text(); ok {
					*of(o) = readMode(v, text)
				}
			},
		}
	}
	return Form[Owner]{
		Name: "owner",
		Keys: []FormKey[Owner]{
			account("user", "Unix user who owns the files, by name or number; root when not given.", func(o *Owner) *string { return &o.User }),
			account("unix_group", "Unix group that owns the files, by name or number; root when not given.", func(o *Owner) *string { return &o.UnixGroup }),
			{
				Name: "may", Doc: "run and move: bring processes into the group; set: change its limits; freeze: stop it for a time.", Schema: listOf(JSONSchema{"enum": rights}),
				Read: func(v Item, o *Owner) {
					for _, item := range v.Items("write a list: `may: [run, move]`") {
						if word, ok := item.Word(rights...); ok && !slices.Contains(o.May, Right(word)) {
							o.May = append(o.May, Right(word))
						}
					}
				},
			},
			mode("mode", "Permissions of the files in octal, in quotes.", func(o *Owner) *string { return &o.Mode }),
			mode("directory", "Permissions of the directory in octal, in quotes; where set is among may.", func(o *Owner) *string { return &o.Directory }),
			boundsField(),
		},
	}
}

// mode reads permissions and gives them with four digits.
func readMode(v Item, text string) string {
	bits, ok := Permissions(text)
	switch owner := bits >> 6 & 7; {
	case !ok || !modeRegexp.MatchString(text):
		v.Fail("write permissions in octal: '0664'", "%s: %q is not a mode", v.Name(), text)
	case (bits>>3&7|bits&7)&^owner != 0:
		v.Fail("give the owner at least as much", "%s: %s gives others more than the owner", v.Name(), text)
	default:
		return fmt.Sprintf("0%03o", bits)
	}
	return ""
}

// owners reads `owner:`.
func readOwners(v Item, o Form[Owner]) []Owner {
	all := []Item{v}
	if v.IsList() {
		all = v.Items("")
	}
	var owners []Owner
	enter, set := Pos{}, Pos{}
	claim := func(item Item, by *Pos, what string) {
		if *by != (Pos{}) {
			item.Fail("a file has one owner: give the others a Unix group", "owner: two may %s", what)
			item.Also(*by)
		}
		*by = item.Pos()
	}
	for _, item := range all {
		one := Owner{Pos: item.Pos()}
		if !o.Read(item, "owner.", &one) {
			continue
		}
		switch {
		case len(one.May) == 0:
			item.Fail("add `may: [run, move, set, freeze]`, or some of these", "owner: nothing that %s may do is named", one)
		case one.Bounds != nil && !one.Has(MaySet):
			item.Fail("add set to may, or take bounds out", "owner.bounds goes with set")
		case one.Directory != "" && !one.Sets():
			item.Fail("add set to may, or take directory out", "owner.directory goes with set without bounds")
		}
		if one.Enters() {
			claim(item, &enter, "bring processes in")
		}
		if one.Sets() {
			claim(item, &set, "set limits")
		}
		owners = append(owners, one)
	}
	return owners
}

// RoleSettings is what the role of a group asks for beside what the group does.
func RoleSettings(g *Group) Settings { return roleSettings(g) }

// KeyOwner stands for the owners of a group among its limits, in steps and in what a directory should hold. It is no key of
// the table: `set` does not take it.
const KeyOwner Key = "owner"
