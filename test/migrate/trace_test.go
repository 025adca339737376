package migrate

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/policy"
)

// parameter is something that a file asks for.
type parameter struct {
	file, text string
	line       int
	inside     []int // the lines of the blocks around it, whose remarks are about it, too
}

// untraced gives what a file asks for and neither the policy nor the report says.
func untraced(im imported) (missing []string) {
	remarks := map[string][]convert.Remark{}
	for _, r := range slices.Concat(im.result.Left, im.result.Changed) {
		at := fmt.Sprintf("%s:%d", r.Pos.File, r.Pos.Line)
		remarks[at] = append(remarks[at], r)
	}
	notes := strings.Join(im.result.Notes, "\n")
	for _, f := range im.sources {
		for _, p := range parameters(f) {
			comment := fmt.Sprintf("# %s:%d ", filepath.Base(p.file), p.line)
			switch {
			case traced(im.result.Policy, comment, p.text), strings.HasPrefix(p.text, "Slice=") &&
				strings.Contains(im.result.Policy, fmt.Sprintf("# %s:1 ", filepath.Base(p.file))),
				strings.Contains(notes, p.text):
				continue
			case slices.ContainsFunc(append(p.inside, p.line), func(line int) bool {
				return slices.ContainsFunc(remarks[fmt.Sprintf("%s:%d", p.file, line)], func(r convert.Remark) bool {
					return line != p.line || strings.Contains(squeeze(r.What), squeeze(p.text)) ||
						strings.HasPrefix(r.What, "group ") || strings.HasPrefix(r.What, "template ")
				})
			}):
				continue
			}
			missing = append(missing, fmt.Sprintf("%s:%d: %s", p.file, p.line, p.text))
		}
	}
	return missing
}

// traced says whether a line of the policy comes from a line of a file, and names what stands there.
func traced(text, comment, parameter string) bool {
	name, value, _ := strings.Cut(parameter, " = ")
	for rest := text; ; {
		_, after, found := strings.Cut(rest, comment)
		if !found {
			// A period goes with its quota, and is named behind it.
			return strings.HasSuffix(name, "period_us") && strings.Contains(text, " of "+value+"\n")
		}
		line, _, _ := strings.Cut(after, "\n")
		if line = squeeze(line); strings.Contains(line, squeeze(firstLine(parameter))) || strings.Contains(line, "…") {
			return true
		}
		rest = after
	}
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// squeeze takes out what comments and remarks write otherwise: blanks and quotes, and what is too long for them.
func squeeze(text string) string {
	text = strings.Map(func(r rune) rune {
		if strings.ContainsRune(" \t\n\"", r) {
			return -1
		}
		return r
	}, text)
	return text[:min(len(text), 80)]
}

// parameters gives what a file asks for.
func parameters(f policy.Source) []parameter {
	base, dir := filepath.Base(f.Path), filepath.Base(filepath.Dir(f.Path))
	switch {
	case base == "cgconfig.conf" || dir == "cgconfig.d":
		return ofConfig(f)
	case base == "cgrules.conf" || dir == "cgrules.d":
		return ofRules(f)
	}
	return ofUnit(f)
}

// token is one of cgconfig.conf, by libcgroup's lexer.
type token struct {
	text         string
	quoted       bool
	line         int
	start, after int
}

var lexer = regexp.MustCompile(`(?m)^[ \t]*#.*|^\*.*|"[^"]*"|[a-zA-Z0-9_\-/.,%@\\]+|\S`)

// tokens splits a cgconfig.conf. Comments are left out.
func tokens(text string) (all []token) {
	line, at := 1, 0
	for _, m := range lexer.FindAllStringIndex(text, -1) {
		line += strings.Count(text[at:m[0]], "\n")
		at = m[0]
		word := text[m[0]:m[1]]
		if trimmed := strings.TrimLeft(word, " \t"); trimmed[0] == '#' || trimmed[0] == '*' {
			continue
		}
		t := token{text: strings.Trim(word, `"`), quoted: word[0] == '"', line: line, start: m[0], after: m[1]}
		all = append(all, t)
	}
	return all
}

// ofConfig gives the parameters of the groups of a cgconfig.conf, and of its templates.
func ofConfig(f policy.Source) (all []parameter) {
	var open []int // lines of the blocks around
	var words []string
	all0 := tokens(f.Text)
	for i, t := range all0 {
		switch {
		case t.text == "{" && !t.quoted:
			open = append(open, t.line)
			if i >= 2 && (all0[i-2].text == "group" || all0[i-2].text == "template") {
				open[len(open)-1] = all0[i-1].line
			}
			words = append(words, all0[max(i-1, 0)].text)
		case t.text == "}" && !t.quoted && len(open) > 0:
			open, words = open[:len(open)-1], words[:len(words)-1]
		case t.text == "=" && !t.quoted && len(words) == 2 && i > 0 && i+1 < len(all0) && words[0] != "mount" &&
			words[1] != "perm":
			all = append(all, parameter{file: f.Path, line: all0[i-1].line, inside: slices.Clone(open[:1]),
				text: all0[i-1].text + " = " + all0[i+1].text})
		}
	}
	return all
}

// ofRules gives the rules of a cgrules.conf.
func ofRules(f policy.Source) (all []parameter) {
	above := ""
	for i, line := range strings.Split(f.Text, "\n") {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		if len(fields) > 2 && fields[0] == "%" && fields[2] == above {
			continue // the same group for another controller
		} else if len(fields) > 2 && fields[0] != "%" {
			above = fields[2]
		}
		if text := strings.Join(fields, " "); text != "" {
			all = append(all, parameter{file: f.Path, line: i + 1, text: text})
		}
	}
	return all
}

// control are the settings of systemd.resource-control(5), by how they begin, and some that look like them.
var control = regexp.MustCompile(`^(Startup|Default)?(CPU|Memory|IO|BlockIO|Tasks|Allowed|ManagedOOM|Device|IP|OOM|` +
	`Disable|Slice$|Delegate|SocketBind|BPF|NFT|Restrict(Network)|NUMA|Coredump(Receive))`)

// ofUnit gives the settings of resource control of a unit: of each the last one, and of lists all.
func ofUnit(f policy.Source) (all []parameter) {
	lists := regexp.MustCompile(`Max$|Bandwidth$|DeviceWeight$|^Allowed|^Device|^IP|^Socket|^BPF|^NFT`)
	single := map[string]int{}
	section := ""
	for i, line := range strings.Split(f.Text, "\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = line
		}
		name, value, ok := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || strings.HasPrefix(line, "#") || strings.HasPrefix(line, ";") || !control.MatchString(name) ||
			name == "MemoryDenyWriteExecute" ||
			strings.HasPrefix(section, "[X-") || value == "" || strings.HasSuffix(name, "Accounting") {
			continue
		}
		p := parameter{file: f.Path, line: i + 1, text: name + "=" + value, inside: []int{1}}
		if at, twice := single[name]; twice && !lists.MatchString(name) {
			all[at] = p
			continue
		}
		single[name] = len(all)
		all = append(all, p)
	}
	return all
}
