package options

import (
	"slices"
	"strings"
)

// maxConfigLines bounds the work on a configuration file.
const maxConfigLines = 20000

// ParseYAML reads the plain values of a YAML file of the kind that servers have: "net.port" for port below net,
// the first item for a list of texts. What it does not understand it leaves out: the server's sockets and working
// directory say the same with more authority.
func ParseYAML(text string) map[string]string {
	r := yamlReader{values: make(map[string]string)}
	lines := 0
	for line := range strings.Lines(text) {
		if lines++; lines > maxConfigLines {
			break
		}
		body := strings.TrimLeft(line, " ")
		indent := len(line) - len(body)
		body = strings.TrimRight(body, " \t\r\n")
		if body != "" && body[0] != '#' && body != "---" {
			r.line(indent, body)
		}
	}
	return r.values
}

type yamlReader struct {
	path   []yamlLevel
	values map[string]string
}

type yamlLevel struct {
	indent int
	name   string // with those above it
}

func (r *yamlReader) line(indent int, body string) {
	last := len(r.path) - 1
	if item, ok := strings.CutPrefix(body, "- "); ok {
		if last >= 0 && r.values[r.path[last].name] == "" && indent >= r.path[last].indent {
			r.values[r.path[last].name] = yamlText(item)
		}
		return
	}
	name, value, ok := strings.Cut(body, ":")
	if !ok || value != "" && value[0] != ' ' && value[0] != '\t' {
		return
	}
	for ; last >= 0 && r.path[last].indent >= indent; last-- {
		r.path = r.path[:last]
	}
	name = strings.Trim(name, `"'`)
	if last >= 0 {
		name = r.path[last].name + "." + name
	}
	if last >= 7 {
		return // no server's file nests so deep
	}
	r.path = append(r.path, yamlLevel{indent, name})
	if value = yamlText(value); value != "" {
		r.values[name] = value
	}
}

// yamlText takes blanks, quotes and a comment off a value.
func yamlText(v string) string {
	v = strings.TrimSpace(v)
	if v != "" && (v[0] == '"' || v[0] == '\'') {
		if end := strings.IndexByte(v[1:], v[0]); end >= 0 {
			return v[1 : 1+end]
		}
	}
	if list, ok := strings.CutPrefix(v, "["); ok { // a list in one line: its first item
		v, _, _ = strings.Cut(strings.TrimRight(list, "] "), ",")
		return yamlText(v)
	}
	if strings.HasPrefix(v, "#") {
		return ""
	}
	if before, _, ok := strings.Cut(v, " #"); ok {
		v = strings.TrimSpace(before)
	}
	return v
}

// ParseYAMLList reads the texts of a list at the top level of a YAML file.
func ParseYAMLList(text, name string) []string {
	var list []string
	inside := false
	for line := range strings.Lines(text) {
		body := strings.TrimSpace(line)
		item, isItem := strings.CutPrefix(body, "- ")
		switch {
		case inside && isItem:
			list = append(list, yamlText(item))
		case body == "" || body[0] == '#':
		default:
			key, rest, _ := strings.Cut(line, ":")
			inside = key == name
			if inner, flow := strings.CutPrefix(strings.TrimSpace(rest), "["); inside && flow {
				for item := range strings.SplitSeq(strings.TrimRight(inner, " ]"), ",") {
					list = append(list, yamlText(item))
				}
			}
		}
	}
	return slices.DeleteFunc(list, func(s string) bool { return s == "" })
}

// ParseMongoConfig reads both forms of the file: YAML, and NAME=VALUE up to 2.4.
func ParseMongoConfig(text string) map[string]string {
	values := ParseYAML(text)
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, "=")
		if name = strings.TrimSpace(name); ok && name != "" && !strings.ContainsAny(name, "#: ") {
			values[name] = strings.TrimSpace(value)
		}
	}
	return values
}
