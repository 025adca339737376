// Package mounted has the actuators of options of mounts: in fstab(5), by the field of a line, and of what is mounted
// (mount(2), MS_REMOUNT). Nothing is unmounted.
//
// An option belongs to a family of which the last one counts: noatime, relatime and strictatime are atime. The address
// of a target is the place of the mount with the family, "/data/atime".
package mounted

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/sysroot"
)

// Kinds of options of mounts.
const (
	// KindListed is the option in /etc/fstab; "" where the line has none of the family.
	KindListed change.Kind = "mount option at boot"
	// KindMounted is what is in force.
	KindMounted change.Kind = "mount option in force"
)

// Prefix begins the name of an option of a mount: "mount /data/atime".
const Prefix = "mount "

// Fstab is the file of KindListed.
const Fstab = "/etc/fstab"

// Host says where mounts are.
type Host struct {
	Root *sysroot.FS
	// Dir is the directory to write below; "" is a captured host, which cannot be changed.
	Dir string
	// Remount is mount(2) with MS_REMOUNT; nil is that of the kernel. For tests.
	Remount func(point string, flags uintptr, data string) error
}

// family is a set of options of which the last one counts.
type family struct {
	name   string
	prefix string   // of options with a value, "errors="
	texts  []string // all without a value, as fstab has them
	values []value  // that can be asked for
	types  []string // of file systems that have it; none is all
}

// value is a word for an option.
type value struct{ word, option string }

var ext = []string{"ext3", "ext4"}

var families = []family{
	{name: "atime", texts: []string{"noatime", "relatime", "strictatime", "atime", "norelatime", "nostrictatime"},
		values: []value{{"noatime", "noatime"}, {"relatime", "relatime"}, {"strictatime", "strictatime"}}},
	{name: "errors", prefix: "errors=", types: ext,
		values: []value{{"remount-ro", "errors=remount-ro"}, {"panic", "errors=panic"},
			{"continue", "errors=continue"}}},
	{name: "discard", prefix: "discard=", texts: []string{"discard", "nodiscard"},
		types:  []string{"ext3", "ext4", "xfs", "btrfs", "f2fs"},
		values: []value{{"on", "discard"}, {"off", "nodiscard"}}},
	// Off is not offered: a power failure takes data then.
	{name: "barrier", prefix: "barrier=", texts: []string{"barrier", "nobarrier"}, types: ext,
		values: []value{{"on", "barrier"}}},
}

// has says whether an option is of the family.
func (f family) has(option string) bool {
	return slices.Contains(f.texts, option) || f.prefix != "" && strings.HasPrefix(option, f.prefix)
}

// word is the value for an option; an option that cannot be asked for stands for itself.
func (f family) word(option string) string {
	for _, v := range f.values {
		if v.option == option {
			return v.word
		}
	}
	return option
}

// option is the inverse. "" is none.
func (f family) option(word string) (string, error) {
	for _, v := range f.values {
		if v.word == word {
			return v.option, nil
		}
	}
	if word == "" || f.has(word) && !strings.ContainsAny(word, ", \t\n\\") {
		return word, nil
	}
	return "", fmt.Errorf("%s of a mount takes no %q, but %s", f.name, word, f.takes())
}

// last is the place of the option of a family that counts, -1 for none.
func last(options []string, f family) int {
	for i, o := range slices.Backward(options) {
		if f.has(o) {
			return i
		}
	}
	return -1
}

// with are options with one of the family, "" for none: in the place of the one that counts, or as the last.
func (f family) with(options []string, option string) []string {
	options = slices.Clone(options)
	switch i := last(options, f); {
	case option == "" && i >= 0:
		return slices.Delete(options, i, i+1)
	case option != "" && i >= 0:
		options[i] = option
	case option != "":
		return append(options, option)
	}
	return options
}

// counts is the word for the option of the family that counts, "" for none.
func (f family) counts(options []string) string {
	if i := last(options, f); i >= 0 {
		return f.word(options[i])
	}
	return ""
}

// suits refuses an option that a type of file systems does not have.
func (f family) suits(point, kind, option string) error {
	if len(f.types) == 0 || slices.Contains(f.types, kind) || kind == "auto" || kind == "" || option == "" {
		return nil
	}
	return fmt.Errorf("%s of %s: a file system of type %s has no option %s, and would not be mounted with it", f.name,
		point, kind, option)
}

func (f family) takes() string {
	var words []string
	for _, v := range f.values {
		words = append(words, v.word)
	}
	return strings.Join(words, " or ")
}

// pointName is a place of a mount as people can write it.
var pointName = regexp.MustCompile(`^/[ !#-\[\]-~]*$`)

// split takes an address apart.
func split(addr string) (point string, f family, err error) {
	at := strings.LastIndex(addr, "/")
	name := addr[at+1:]
	if point = addr[:max(at, 0)]; at == 0 || point == "/" {
		point = "/"
	}
	i := slices.IndexFunc(families, func(f family) bool { return f.name == name })
	switch {
	case i < 0:
		var known []string
		for _, f := range families {
			known = append(known, f.name)
		}
		return "", f, fmt.Errorf("%q is not an option of a mount that is set here: %s are", name,
			strings.Join(known, ", "))
	case at < 0 || !pointName.MatchString(point) || path.Clean(point) != point:
		return "", f, fmt.Errorf("%q is not the place of a mount: write it as findmnt shows it, /data", point)
	}
	return point, families[i], nil
}

// Check says what is wrong with an option and its value.
func Check(addr, word string) error {
	_, f, err := split(addr)
	if err == nil && !slices.ContainsFunc(f.values, func(v value) bool { return v.word == word }) {
		err = fmt.Errorf("%s of a mount takes no %q, but %s", f.name, word, f.takes())
	}
	return err
}

// Name is the name of the setting that an option of a mount asks for, with its value; no for one that is not set here.
func Name(point, option string) (name, word string, known bool) {
	if option == "barrier=1" {
		option = "barrier"
	}
	for _, f := range families {
		if f.has(option) {
			word = f.word(option)
			name = path.Join(point, f.name)
			return Prefix + name, word, Check(name, word) == nil
		}
	}
	return "", "", false
}

// Clean is the one form of an address: "//atime" is "/atime".
func Clean(addr string) string {
	if strings.HasPrefix(addr, "//") && strings.Count(addr, "/") == 2 {
		return addr[1:]
	}
	return addr
}

// Target is that of an option at boot.
func Target(addr string) change.Target { return change.Target{Kind: KindListed, Addr: Clean(addr)} }

// Running is the option of what is mounted, for one at boot.
func Running(t change.Target) (running change.Target, has bool) {
	return change.Target{Kind: KindMounted, Addr: t.Addr}, t.Kind == KindListed
}

// Point is the place of the mount that a target is of.
func Point(t change.Target) string {
	point, _, _ := split(t.Addr) // an address was checked
	return point
}
