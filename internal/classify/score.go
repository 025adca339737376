package classify

import (
	"strings"

	"bulkhead/internal/policy"
)

// key is one key of a match entry.
type key struct {
	name  string
	score int
	get   func(m *policy.Match) string
}

// keys are the keys in the order in which a rule is printed. Each score is larger than all smaller ones
// together, so that a sum says which keys a rule has and a rule with a more specific key always wins; only
// the same keys give the same score. The five keys that name one instance count once. A helper may be a part of its
// instance too (the sessions of an RMAN), and is the more specific of the two.
var keys = []key{
	{"engine", 1, func(m *policy.Match) string { return m.Engine }},
	{"port", scoreInstance, func(m *policy.Match) string { return m.Port }},
	{"socket", scoreInstance, func(m *policy.Match) string { return m.Socket }},
	{"datadir", scoreInstance, func(m *policy.Match) string { return m.DataDir }},
	{"sid", scoreInstance, func(m *policy.Match) string { return m.SID }},
	{"instance", scoreInstance, func(m *policy.Match) string { return m.Instance }},
	{"helper", 2048, func(m *policy.Match) string { return m.Helper }},
	{"part", 1024, func(m *policy.Match) string { return m.Part }},
	{"exe", scoreExeName, func(m *policy.Match) string { return m.Exe }}, // scoreExePath with a "/"
	{"program", 512, func(m *policy.Match) string { return m.Program }},
	{"cmdline", 4096, func(m *policy.Match) string { return m.Cmdline }},
	{"user", 4, func(m *policy.Match) string { return m.User }},
	{"unix_group", 2, func(m *policy.Match) string { return m.UnixGroup }},
	{"unit", 32, func(m *policy.Match) string { return m.Unit }},
	{"cgroup", 16, func(m *policy.Match) string { return m.Cgroup }},
	{"ancestor", 8, func(m *policy.Match) string { return m.Ancestor }},
	{"env", 64, func(m *policy.Match) string { return m.Env }},
}

const (
	scoreInstance = 8192
	scoreExePath  = 256
	scoreExeName  = 128
)

// score says how specific a match is: the sum over its keys. `except` does not count.
func score(m *policy.Match) int {
	sum := 0
	for _, k := range keys {
		switch value := k.get(m); {
		case value == "":
		case k.name == "exe" && strings.Contains(value, "/"):
			sum |= scoreExePath
		default:
			sum |= k.score
		}
	}
	return sum
}

// text writes a match as it stands in a policy: "engine: mysql, port: 3306".
func text(m *policy.Match) string {
	var parts []string
	for _, k := range keys {
		if v := k.get(m); v != "" {
			parts = append(parts, k.name+": "+quoteYAML(v, k.name == "cmdline"))
		}
	}
	if len(m.Except) > 0 {
		var out []string
		for i := range m.Except {
			out = append(out, "{"+text(&m.Except[i])+"}")
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

// keyNames returns the names of the keys that a match has.
func keyNames(m *policy.Match) []string {
	var names []string
	for _, k := range keys {
		if k.get(m) != "" {
			names = append(names, k.name)
		}
	}
	return names
}

func keyValue(m *policy.Match, name string) string {
	for _, k := range keys {
		if k.name == name {
			return k.get(m)
		}
	}
	return ""
}
