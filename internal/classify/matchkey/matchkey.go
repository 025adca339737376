// Package matchkey has the keys of a match entry: how they are written, and how much each counts. It keeps nothing.
package matchkey

import (
	"strings"

	"bulkhead/internal/policy"
)

// Key is one key of a match entry.
type Key struct {
	Name  string
	Score int
	Get   func(m *policy.Match) string
}

// Keys are the keys in the order in which a rule is printed. Each score is larger than all smaller ones
// together, so that a sum says which keys a rule has and a rule with a more specific key always wins; only
// the same keys give the same score. The five keys that name one instance count once. A helper may be a part of its
// instance too (the sessions of an RMAN), and is the more specific of the two.
var Keys = []Key{
	{"engine", 1, func(m *policy.Match) string { return m.Engine }},
	{"port", ScoreInstance, func(m *policy.Match) string { return m.Port }},
	{"socket", ScoreInstance, func(m *policy.Match) string { return m.Socket }},
	{"datadir", ScoreInstance, func(m *policy.Match) string { return m.DataDir }},
	{"sid", ScoreInstance, func(m *policy.Match) string { return m.SID }},
	{"instance", ScoreInstance, func(m *policy.Match) string { return m.Instance }},
	{"helper", 2048, func(m *policy.Match) string { return m.Helper }},
	{"part", 1024, func(m *policy.Match) string { return m.Part }},
	{"exe", ScoreExeName, func(m *policy.Match) string { return m.Exe }}, // ScoreExePath with a "/"
	{"program", 512, func(m *policy.Match) string { return m.Program }},
	{"cmdline", 4096, func(m *policy.Match) string { return m.Cmdline }},
	{"user", 4, func(m *policy.Match) string { return m.User }},
	{"unix_group", 2, func(m *policy.Match) string { return m.UnixGroup }},
	{"unit", 32, func(m *policy.Match) string { return m.Unit }},
	{"cgroup", 16, func(m *policy.Match) string { return m.Cgroup }},
	{"ancestor", 8, func(m *policy.Match) string { return m.Ancestor }},
	{"env", 64, func(m *policy.Match) string { return m.Env }},
}

// How much the keys that name an instance count together, and `exe` with and without a "/".
const (
	ScoreInstance = 8192
	ScoreExePath  = 256
	ScoreExeName  = 128
)

// Score says how specific a match is: the sum over its keys. `except` does not count.
func Score(m *policy.Match) int {
	sum := 0
	for _, k := range Keys {
		switch value := k.Get(m); {
		case value == "":
		case k.Name == "exe" && strings.Contains(value, "/"):
			sum |= ScoreExePath
		default:
			sum |= k.Score
		}
	}
	return sum
}

// Text writes a match as it stands in a policy: "engine: mysql, port: 3306".
func Text(m *policy.Match) string {
	var parts []string
	for _, k := range Keys {
		if v := k.Get(m); v != "" {
			parts = append(parts, k.Name+": "+quoteYAML(v, k.Name == "cmdline"))
		}
	}
	if len(m.Except) > 0 {
		var out []string
		for i := range m.Except {
			out = append(out, "{"+Text(&m.Except[i])+"}")
		}
		parts = append(parts, "except: ["+strings.Join(out, ", ")+"]")
	}
	return strings.Join(parts, ", ")
}

// quoteYAML puts a value in single quotes when YAML would read it otherwise.
func quoteYAML(v string, always bool) string {
	plain := !always && !strings.ContainsAny(v, " :#'\"\\{}[],&*!|>%@`\n\t") && !strings.HasPrefix(v, "-")
	if plain {
		return v
	}
	return "'" + strings.ReplaceAll(v, "'", "''") + "'"
}

// Names returns the names of the keys that a match has.
func Names(m *policy.Match) []string {
	var names []string
	for _, k := range Keys {
		if k.Get(m) != "" {
			names = append(names, k.Name)
		}
	}
	return names
}

// NotForEach returns a key of a template's each that looks at a process rather than at an instance; "" for none.
func NotForEach(each *policy.Match) string {
	for _, k := range Keys {
		switch k.Name {
		case "engine", "port", "socket", "datadir", "sid", "instance", "part", "user":
			continue
		}
		if k.Get(each) != "" {
			return k.Name
		}
	}
	for i := range each.Except {
		if k := NotForEach(&each.Except[i]); k != "" {
			return k
		}
	}
	return ""
}

// Value is what a match has for a key.
func Value(m *policy.Match, name string) string {
	for _, k := range Keys {
		if k.Name == name {
			return k.Get(m)
		}
	}
	return ""
}
