package engine

import (
	"strings"
)

// longOptions reads a command line of options: "--name=value", "--name value", "-name value" as Go's flag
// package has it, and the short ones named. A name that is followed by another option, or by nothing, has
// the value "". Underscores in names read as dashes. The last one of a name wins.
func longOptions(args []string, short map[string]string) map[string]string {
	opts := make(map[string]string)
	if len(args) == 0 {
		return opts
	}
	rest := args[1:]
	for i := 0; i < len(rest); i++ {
		name, value, given := strings.Cut(rest[i], "=")
		long, known := short[name]
		switch {
		case known:
			name = long
		case strings.HasPrefix(name, "--") && len(name) > 2:
			name = name[2:]
		case !strings.HasPrefix(name, "-") || len(name) < 2:
			continue
		default:
			if long, known = short[name[:2]]; known && !given { // "-p3306"
				opts[long] = name[2:]
				continue
			}
			name = name[1:]
		}
		if !given && i+1 < len(rest) && !strings.HasPrefix(rest[i+1], "-") {
			value = rest[i+1] // and may be an operand of its own: it is looked at again
		}
		opts[strings.ReplaceAll(name, "_", "-")] = value
	}
	return opts
}

// operands are the arguments that are no options; the value of an option is among them where nothing tells
// that it is one.
func operands(args []string) []string {
	var all []string
	for i, arg := range args {
		if i > 0 && !strings.HasPrefix(arg, "-") {
			all = append(all, arg)
		}
	}
	return all
}

// maxConfigLines bounds the work on a configuration file.
const maxConfigLines = 20000

// yamlScalars reads the plain values of a YAML file of the kind that servers have: "net.port" for port below net,
// the first item for a list of texts. What it does not understand it leaves out: the server's sockets and working
// directory say the same with more authority.
func yamlScalars(text string) map[string]string {
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
