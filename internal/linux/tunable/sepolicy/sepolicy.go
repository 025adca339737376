// Package sepolicy has the actuators of local settings of SELinux: the type of files below a path, with their labels;
// the type of a port; a boolean; a module of bulkhead's own, which has rules or makes one domain permissive.
//
// What is asked of semanage(8) and semodule(8) is read back from the store that they keep (semanage.conf(5)): a value
// is what the local part of it has, "" is nothing. So undoing takes away what was added and leaves what the policy
// itself or an administrator has. Labels are read and written as extended attributes.
//
// One program changes a store at a time: writing and undoing wait for one that works on it, reading does not. Nothing
// here switches SELinux off.
package sepolicy

import (
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/change"
)

// Kinds of settings.
const (
	// KindContext is a line of the local file contexts, for a path and all below it. Its address is the path, its value
	// the type.
	KindContext change.Kind = "selinux file context"
	// KindLabels are the labels of a path and of all below it on that file system; see Labels.
	KindLabels change.Kind = "selinux labels"
	// KindPort is the type of a port or of a range of ports, "tcp/4444" or "udp/4567-4568".
	KindPort change.Kind = "selinux port"
	// KindBoolean is the value of a boolean in the store, KindSwitch that of the kernel: "on" or "off".
	KindBoolean change.Kind = "selinux boolean"
	KindSwitch  change.Kind = "selinux boolean in force"
	// KindModule is a module of priority 400; its value is the text, in CIL and on one line.
	KindModule change.Kind = "selinux module"
)

// Prefix begins the name of a setting: "selinux port tcp/4444".
const Prefix = "selinux "

// kind is a kind of settings by the word in its name.
type kind struct {
	word   string
	kind   change.Kind
	addr   func(addr string) error
	values pattern
	want   string
}

var kinds = []kind{
	{"context", KindContext, checkTree, typeName, "the name of a type, as mysqld_db_t"},
	{"labels", KindLabels, checkTree, compiled(`^[a-zA-Z][a-zA-Z0-9_.]*(\n|$)`),
		"a type, or one with the types of what differs below it"},
	{"port", KindPort, checkPort, portType, "the name of a type, as mysqld_port_t; \"TYPE from OWNER\" takes the " +
		"port from the type that has it"},
	{"boolean", KindBoolean, matching(booleanName, "a boolean"), switched, "on: one that is switched off may protect"},
	{"module", KindModule, matching(moduleName, "a module of bulkhead's"), cil, "rules in CIL on one line"},
}

// split takes a setting apart, by its name without Prefix: "port tcp/4444".
func split(name string) (k kind, addr string, err error) {
	word, addr, _ := strings.Cut(name, " ")
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.word == word })
	if i < 0 {
		return k, "", fmt.Errorf("%q is not a setting of SELinux: context, labels, port, boolean and module are", name)
	}
	return kinds[i], addr, kinds[i].addr(addr)
}

// Check says what is wrong with a setting, by its name without Prefix, and its value.
func Check(name, value string) error {
	k, addr, err := split(name)
	switch {
	case err != nil:
		return err
	case !k.values.MatchString(value):
		return fmt.Errorf("%s%s takes no %q, but %s", Prefix, name, value, k.want)
	case k.kind == KindLabels:
		_, err = parseListing(value)
	case k.kind == KindModule && strings.HasPrefix(addr, permissive):
		if value != Permissive(strings.TrimPrefix(addr, permissive)) {
			err = fmt.Errorf("%s makes one domain permissive, and has no other rule", addr)
		}
	}
	return err
}

// Rule is a rule of a module; a target that is the source itself is "self".
func Rule(source, target, class string, permissions []string) string {
	if target == source {
		target = "self"
	}
	return "(allow " + source + " " + target + " (" + class + " (" + strings.Join(permissions, " ") + ")))"
}

// RuleParts is what a rule of a module says.
type RuleParts struct {
	Source, Target, Class string
	Permissions           []string
}

// Rules are those of a module's text, as Rule writes them.
func Rules(text string) (all []RuleParts) {
	for _, m := range oneRule().FindAllStringSubmatch(text, -1) {
		all = append(all, RuleParts{Source: m[1], Target: m[2], Class: m[3], Permissions: strings.Fields(m[4])})
	}
	return all
}

// Permissive is the module that makes a domain permissive, as `semanage permissive -a` writes it.
func Permissive(domain string) string { return "(typepermissive " + domain + ")" }

// permissive begins the names of modules that do so, as those of `semanage permissive`.
const permissive = "permissive_"

// PermissiveName is the name of the setting that makes a domain permissive, with Prefix.
func PermissiveName(domain string) string { return Prefix + "module " + permissive + domain }

// PermissiveIn is the domain that a setting makes permissive, by its name with Prefix; "" is none.
func PermissiveIn(name string) string {
	domain, is := strings.CutPrefix(name, Prefix+"module "+permissive)
	if !is {
		return ""
	}
	return domain
}

// LabelledBy is the path at which a setting changes labels, and below it, by its name with Prefix; "" is none.
func LabelledBy(name string) string {
	t := Target(strings.TrimPrefix(name, Prefix))
	if t.Kind == KindContext || t.Kind == KindLabels {
		return t.Addr
	}
	return ""
}

// Target is that of a setting, by its name without Prefix.
func Target(name string) change.Target {
	k, addr, _ := split(name) // of no setting it is of no kind
	return change.Target{Kind: k.kind, Addr: addr}
}

// NamePrefix begins the names of settings of a kind; "" is of another package's kind.
func NamePrefix(of change.Kind) string {
	if of == KindSwitch {
		of = KindBoolean
	}
	for _, k := range kinds {
		if k.kind == of {
			return Prefix + k.word + " "
		}
	}
	return ""
}

// Running is what a setting of the store is in force as: the labels of the files, the boolean of the kernel.
func Running(t change.Target) (running change.Target, has bool) {
	switch t.Kind {
	case KindContext:
		return change.Target{Kind: KindLabels, Addr: t.Addr}, true
	case KindBoolean:
		return change.Target{Kind: KindSwitch, Addr: t.Addr}, true
	}
	return change.Target{}, false
}

// Same compares values of a target; is says whether its kind is of this package.
func Same(t change.Target, want, got string) (same, is bool) {
	switch t.Kind {
	case KindLabels:
		return Labels{}.Same(t.Addr, want, got), true
	case KindPort:
		return Ports{}.Same(t.Addr, want, got), true
	case KindBoolean:
		return Booleans{}.Same(t.Addr, want, got), true
	case KindContext, KindSwitch, KindModule:
		return want == got, true
	}
	return false, false
}

// Lasting are the kinds whose values outlive a boot: all of them.
var Lasting = []change.Kind{KindContext, KindLabels, KindPort, KindBoolean, KindSwitch, KindModule}

// Actuators are those of the kinds of this package.
func (h Host) Actuators() change.Actuators {
	return change.Actuators{
		KindContext: Contexts{h}, KindLabels: Labels{h}, KindPort: Ports{h}, KindBoolean: Booleans{h},
		KindSwitch: Switches{h}, KindModule: Modules{h},
	}
}
