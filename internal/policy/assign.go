package policy

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// argument is the file name of a Pos inside a command-line argument.
const argument = "argument"

// ParseAssignment reads an argument of `set`, "mysql23761:cpu.limit=8". on is the value of --on: the
// target of an io limit, as in `io: [{on: …}]`, or the page size of memory.huge. The error is
// Problems, in the words of the file, with columns of the argument.
func ParseAssignment(text, on string) (group string, s Setting, err error) {
	target, value, found := strings.Cut(text, "=")
	if !found {
		return "", s, inArgument(text, len(text), faultf("write group:key=value; `unset group:key` takes an override back", "%q has no value", text))
	}
	group, key, err := parseTarget(text, target)
	if err != nil {
		return "", s, err
	}
	l := limitOf(key)
	at := len(target) + 1
	if value == "" {
		return "", s, inArgument(text, at, faultf("`unset "+target+"` takes an override back", "%s has no value", target))
	}
	place, err := assignmentPlace(text, on, l)
	if err != nil {
		return "", s, err
	}
	v, wrong := l.parse(strings.TrimSpace(value))
	if wrong != nil {
		wrong.msg = fmt.Sprintf("%s: %s", key, wrong.msg)
		return "", s, inArgument(text, at, wrong)
	}
	if size := Bytes(HugePageSize(place)); key == KeyMemoryHuge {
		if b, sized := v.(Bytes); sized && b > 0 && b < size {
			return "", s, inArgument(text, at, faultf("", "%s: %s is less than one page of %s", key, b, size))
		}
	}
	return group, Setting{Key: key, On: place, Value: v, Raw: raw(value), Pos: Pos{argument, 1, column(text, at)}, From: "set"}, nil
}

// assignmentPlace reads --on for a key.
func assignmentPlace(text, on string, l *limit) (string, error) {
	isIO := strings.HasPrefix(string(l.key), "io.")
	switch {
	case isIO && on == "":
		return "", nil
	case isIO:
		target, wrong := ioTarget(on)
		if wrong != nil {
			return "", inArgument("", 0, faultf(wrong.hint, "--on: %s", wrong.msg))
		}
		return target, nil
	case l.key.OfNetwork():
		return networkPlace(text, on, l)
	case l.key == KeyMemoryHuge && on == "":
		return "", inArgument(text, 0, faultf("add `--on 2MiB`", "%s needs the page size", l.key))
	case l.key == KeyMemoryHuge:
		size, wrong := pageSize(on)
		if wrong != nil {
			return "", inArgument("", 0, faultf(wrong.hint, "--on: %s", wrong.msg))
		}
		return HugePageName(size), nil
	case on != "":
		return "", inArgument(text, 0, faultf("--on names the device of an io limit, the interface of one on the network, or the page size of memory.huge", "%s has no --on", l.key))
	}
	return "", nil
}

// networkPlace reads --on of a limit on an interface.
func networkPlace(text, on string, l *limit) (string, error) {
	if on == "" {
		return "", inArgument(text, 0, faultf("add `--on eth0`, or `--on default`", "%s needs the interface", l.key))
	}
	target, wrong := interfaceTarget(on)
	if wrong != nil {
		return "", inArgument("", 0, faultf(wrong.hint, "--on: %s", wrong.msg))
	}
	return target, nil
}

// ParseTarget reads an argument of `unset`, "mysql23761:cpu.limit". The error is Problems.
func ParseTarget(text string) (group string, key Key, err error) {
	if target, _, found := strings.Cut(text, "="); found {
		return "", "", inArgument(text, len(target), faultf("write group:key alone", "%q has a value, and unset takes none", text))
	}
	return parseTarget(text, text)
}

// parseTarget reads "group:key"; text is the whole argument, for the problem.
func parseTarget(text, target string) (group string, key Key, err error) {
	group, name, found := strings.Cut(target, ":")
	if !found {
		return "", "", inArgument(text, 0, faultf("write group:key, such as reports:cpu.limit", "%q names no group and key", target))
	}
	for segment := range strings.SplitSeq(group, "/") {
		if !validName(segment) {
			return "", "", inArgument(text, 0, faultf(nameHint, "%q is not a group", group))
		}
	}
	key = Key(name)
	if limitOf(key) == nil {
		var known []string
		for _, k := range append(KnownKeys(), NetworkKeys()...) {
			known = append(known, string(k))
		}
		hint := didYouMean(name, known, "keys are "+joinWords(known))
		return "", "", inArgument(text, len(group)+1, faultf(hint, "unknown key %q", name))
	}
	return group, key, nil
}

// inArgument is a fault at a byte of a command-line argument.
func inArgument(text string, offset int, f *fault) error {
	p := Problem{Msg: f.msg, Hint: f.hint}
	if utf8.ValidString(text) && text != "" {
		p.Pos, p.Source = Pos{argument, 1, column(text, offset)}, text
	}
	return Problems{p}
}

func column(text string, offset int) int { return utf8.RuneCountInString(text[:offset]) + 1 }
