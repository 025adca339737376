package parse

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// Assignment reads an argument of `set`, "mysql23761:cpu.limit=8". on is the value of --on: the
// target of an io limit, as in `io: [{on: …}]`, or the page size of memory.huge. The error is
// Problems, in the words of the file. A Pos inside an argument has a column and neither file nor line.
func Assignment(text, on string) (group string, s policy.Setting, err error) {
	target, value, found := strings.Cut(text, "=")
	if !found {
		return "", s,
			inArgument(text, len(text), policy.Faultf("write group:key=value; `unset group:key` takes an override back",
				"%q has no value", text))
	}
	group, key, err := parseTarget(text, target)
	if err != nil {
		return "", s, err
	}
	l := policy.LimitOf(key)
	at := len(target) + 1
	if value == "" {
		return "", s, inArgument(text, at, policy.Faultf("`unset "+target+"` takes an override back", "%s has no value",
			target))
	}
	place, err := assignmentPlace(text, on, l)
	if err != nil {
		return "", s, err
	}
	v, wrong := l.Parse(strings.TrimSpace(value))
	if wrong != nil {
		wrong.Msg = fmt.Sprintf("%s: %s", key, wrong.Msg)
		return "", s, inArgument(text, at, wrong)
	}
	if size := policy.Bytes(policy.HugePageSize(place)); key == policy.KeyMemoryHuge {
		if b, sized := v.(policy.Bytes); sized && b > 0 && b < size {
			return "", s, inArgument(text, at, policy.Faultf("", "%s: %s is less than one page of %s", key, b, size))
		}
	}
	return group, policy.Setting{Key: key, On: place, Value: v, Raw: policy.Raw(value),
		Pos: policy.Pos{Column: column(text, at)}, From: "set"}, nil
}

// assignmentPlace reads --on for a key.
func assignmentPlace(text, on string, l *policy.Limit) (string, error) {
	isIO := strings.HasPrefix(string(l.Key), "io.")
	switch {
	case isIO && on == "":
		return "", nil
	case isIO:
		target, wrong := policy.DiskTarget(on)
		if wrong != nil {
			return "", inArgument("", 0, policy.Faultf(wrong.Hint, "--on: %s", wrong.Msg))
		}
		return target, nil
	case l.Key.OfNetwork():
		return networkPlace(text, on, l)
	case l.Key == policy.KeyMemoryHuge && on == "":
		return "", inArgument(text, 0, policy.Faultf("add `--on 2MiB`", "%s needs the page size", l.Key))
	case l.Key == policy.KeyMemoryHuge:
		size, wrong := policy.PageSize(on)
		if wrong != nil {
			return "", inArgument("", 0, policy.Faultf(wrong.Hint, "--on: %s", wrong.Msg))
		}
		return policy.HugePageName(size), nil
	case on != "":
		return "", inArgument(text, 0,
			policy.Faultf("--on names the device of an io limit, the interface of one on the network, or the page "+
				"size of memory.huge", "%s has no --on", l.Key))
	}
	return "", nil
}

// networkPlace reads --on of a limit on an interface.
func networkPlace(text, on string, l *policy.Limit) (string, error) {
	if on == "" {
		return "", inArgument(text, 0, policy.Faultf("add `--on eth0`, or `--on default`", "%s needs the interface",
			l.Key))
	}
	target, wrong := policy.InterfaceTarget(on)
	if wrong != nil {
		return "", inArgument("", 0, policy.Faultf(wrong.Hint, "--on: %s", wrong.Msg))
	}
	return target, nil
}

// Target reads an argument of `unset`, "mysql23761:cpu.limit". The error is Problems.
func Target(text string) (group string, key policy.Key, err error) {
	if target, _, found := strings.Cut(text, "="); found {
		return "", "", inArgument(text, len(target), policy.Faultf("write group:key alone",
			"%q has a value, and unset takes none", text))
	}
	return parseTarget(text, text)
}

// parseTarget reads "group:key"; text is the whole argument, for the problem.
func parseTarget(text, target string) (group string, key policy.Key, err error) {
	group, name, found := strings.Cut(target, ":")
	if !found {
		return "", "", inArgument(text, 0, policy.Faultf("write group:key, such as reports:cpu.limit",
			"%q names no group and key", target))
	}
	for segment := range strings.SplitSeq(group, "/") {
		if !policy.ValidName(segment) {
			return "", "", inArgument(text, 0, policy.Faultf(policy.NameHint, "%q is not a group", group))
		}
	}
	key = policy.Key(name)
	if policy.LimitOf(key) == nil {
		var known []string
		for _, k := range policy.Keys() {
			known = append(known, string(k))
		}
		hint := yamlform.DidYouMean(name, known, "keys are "+yamlform.JoinWords(known))
		if other := groupForm().Elsewhere[name]; strings.Contains(name, ".") && other != "" {
			hint = other
		}
		return "", "", inArgument(text, len(group)+1, policy.Faultf(hint, "unknown key %q", name))
	}
	return group, key, nil
}

// inArgument is a fault at a byte of a command-line argument.
func inArgument(text string, offset int, f *policy.Fault) error {
	p := policy.Problem{Msg: f.Msg, Hint: f.Hint}
	if utf8.ValidString(text) && text != "" {
		p.Pos, p.Source = policy.Pos{Column: column(text, offset)}, text
	}
	return policy.Problems{p}
}

func column(text string, offset int) int { return utf8.RuneCountInString(text[:offset]) + 1 }
