package libcgroup

import (
	"slices"
	"strings"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/kernelfile"
	"bulkhead/internal/policy"
)

// rule is one line of cgrules.conf with those that continue it.
type rule struct {
	at          policy.Pos
	what        string
	user        string // "peter", "@dba", "*"
	process     string // "" for any
	controllers []string
	destination string
	ignore      bool
	ignoreRT    bool
	bare        bool   // USER: with nothing behind the colon
	more        []rule // lines that begin with %
}

// ruleFields are the fields of a line with where they begin.
type ruleField struct {
	text   string
	offset int
	quoted bool
}

// rules reads one file. Its grammar is that of cgrules.conf(5): fields between blanks, of which the first and the third
// may stand in double quotes; a # begins a comment anywhere.
func readRuleLines(in *convert.Input) (all []rule) {
	for i, start := range in.Starts {
		end := len(in.Body)
		if i+1 < len(in.Starts) {
			end = in.Starts[i+1] - 1
		}
		line, _, _ := strings.Cut(strings.TrimSuffix(in.Body[start:end], "\r"), "#")
		fields, ok := fieldsOf(in, start, line)
		if !ok || len(fields) == 0 {
			continue
		}
		r, ok := ruleOf(in, fields)
		if !ok {
			continue
		}
		r.what = convert.Clean(line)
		switch {
		case r.user != "%":
			all = append(all, r)
		case len(all) == 0:
			in.Bad(fields[0].offset, "begin with a user, @group or *", "%% continues the rule above, and there is none")
		default:
			last := &all[len(all)-1]
			last.more = append(last.more, r)
		}
	}
	return all
}

// fields splits a line. A quote may begin inside a field, as in user:"a program".
func fieldsOf(in *convert.Input, start int, line string) (fields []ruleField, ok bool) {
	for i := 0; i < len(line); {
		if line[i] == ' ' || line[i] == '\t' {
			i++
			continue
		}
		f := ruleField{offset: start + i}
		for i < len(line) && line[i] != ' ' && line[i] != '\t' {
			if line[i] != '"' {
				run := strings.IndexAny(line[i:], " \t\"")
				if run < 0 {
					run = len(line) - i
				}
				f.text += line[i : i+run]
				i += run
				continue
			}
			end := strings.IndexByte(line[i+1:], '"')
			if end < 0 {
				in.Bad(start+i, "close it with the same quote", "this quote is never closed")
				return nil, false
			}
			f.text, f.quoted = f.text+line[i+1:i+1+end], true
			i += end + 2
		}
		fields = append(fields, f)
	}
	return fields, true
}

// ruleOptions are what may stand behind the destination.
var ruleOptions = []string{"ignore", "ignore_rt"}

// rule reads the fields of one line.
func ruleOf(in *convert.Input, fields []ruleField) (r rule, ok bool) {
	if len(fields) < 3 {
		in.Bad(fields[0].offset, "write USER CONTROLLERS GROUP, or USER:PROGRAM CONTROLLERS GROUP",
			"this rule has %d of three fields", len(fields))
		return r, false
	}
	if len(fields) > 4 {
		in.Bad(fields[4].offset, "put a name with blanks in double quotes", "%q is one field too many",
			convert.Clean(fields[4].text))
		return r, false
	}
	r.at = in.At(fields[0].offset)
	var named bool
	r.user, r.process, named = strings.Cut(fields[0].text, ":")
	r.bare = named && r.process == ""
	r.destination = fields[2].text
	switch {
	case r.user == "" || r.user == "@":
		in.Bad(fields[0].offset, "write a user, @group or *", "this rule names nobody")
		return r, false
	case r.user != "*" && r.user != "%" && strings.ContainsAny(strings.TrimPrefix(r.user, "@"), "*%/ ,{"):
		in.Bad(fields[0].offset, "write a user, @group or *", "%q is not a user", convert.Clean(r.user))
		return r, false
	}
	for name := range strings.SplitSeq(fields[1].text, ",") {
		if name != "*" && !strings.HasPrefix(name, "name=") && !slices.Contains(kernelfile.Controllers, name) {
			kernelfile.UnknownController(in, name, fields[1].offset)
		}
		r.controllers = append(r.controllers, name)
	}
	if len(fields) == 4 {
		for option := range strings.SplitSeq(fields[3].text, ",") {
			if !slices.Contains(ruleOptions, option) {
				in.Bad(fields[3].offset, "options are ignore and ignore_rt", "there is no option %q",
					convert.Clean(option))
			}
			r.ignore = r.ignore || option == "ignore"
			r.ignoreRT = r.ignoreRT || option == "ignore_rt"
		}
	}
	return r, true
}
