package yamlform

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"bulkhead/internal/policy"

	"go.yaml.in/yaml/v4"
)

// decode gives the root node of a source, or nil, and what is wrong with its YAML.
func decode(s policy.Source) (*yaml.Node, policy.Problems) {
	loader, err := yaml.NewLoader(strings.NewReader(s.Text), yaml.WithV4Defaults())
	if err != nil {
		return nil, policy.Problems{{Pos: policy.Pos{File: s.Path}, Msg: err.Error()}}
	}
	var doc, second yaml.Node
	switch err := loader.Load(&doc); {
	case errors.Is(err, io.EOF):
		return nil, policy.Problems{{
			Pos: policy.Pos{File: s.Path, Line: 1, Column: 1}, Msg: "the file holds nothing but comments",
			Hint: "a policy starts with `version: 1`; `bulkhead discover --as-policy` prints a starter policy",
		}}
	case err != nil:
		return nil, policy.Problems{syntaxProblem(s, err)}
	}
	root := &doc
	if doc.Kind == yaml.DocumentNode && len(doc.Content) == 1 {
		root = doc.Content[0]
	}
	var problems policy.Problems
	switch err := loader.Load(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		problems = append(problems, syntaxProblem(s, err))
	default:
		problems = append(problems, policy.Problem{
			Pos:  policy.Pos{File: s.Path, Line: second.Line, Column: second.Column},
			Msg:  "a second document starts here",
			Hint: "a policy file is one document; put the other into a file of its own and `include:` it",
		})
	}
	if p := firstAlias(s, root); p != nil {
		problems = append(problems, *p)
	}
	return root, problems
}

// firstAlias finds the first use of an anchor. They are refused as a whole: a value then has one
// place where it is written, and no document can grow when it is read.
func firstAlias(s policy.Source, n *yaml.Node) *policy.Problem {
	if n.Kind == yaml.AliasNode {
		return &policy.Problem{
			Pos:  policy.Pos{File: s.Path, Line: n.Line, Column: n.Column},
			Msg:  fmt.Sprintf("alias *%s: a policy has no aliases", n.Value),
			Hint: "give groups that share settings a class; put quotes around text that starts with a *",
		}
	}
	for _, child := range n.Content {
		if p := firstAlias(s, child); p != nil {
			return p
		}
	}
	return nil
}

// syntaxRules turns the YAML library's messages into what a person needs. The first rule whose
// fragment occurs in the message is taken; %s is the character at the position.
var syntaxRules = []struct {
	fragment, msg, hint string
	atContext           bool // the place to show is where the construct began
}{
	{"unknown anchor", "text that starts with * is a YAML alias", "put quotes around it", false},
	{"found unexpected end of stream", "this quote is never closed", "close it with the same quote", true},
	{"found unexpected document indicator", "this quote is not closed before the document ends",
		"close it with the same quote", true},
	{"cannot start any token", "a value cannot start with %s", "put quotes around it", false},
	{"mapping values are not allowed", "a colon and a space cannot stand here",
		"put quotes around text that holds \": \", or check the indentation", false},
	{"expected ',' or '}'", "this { is not closed", "close it with }, and put commas between its entries", true},
	{"expected ',' or ']'", "this [ is not closed", "close it with ], and put commas between its entries", true},
	{"did not find expected key", "this line does not fit the ones above",
		"check the indentation: the keys of one block start in one column", false},
	{"did not find expected '-' indicator", "this line does not fit the list above",
		"check the indentation: the entries of one list start with - in one column", false},
	{"could not find expected ':'", "a colon is missing behind this key", "write `key: value`", true},
	{"block sequence entries are not allowed", "a list entry cannot stand here", "start the list on a line of its own",
		false},
	{"unknown escape character", "unknown escape in double quotes",
		"use single quotes for text with backslashes, such as regular expressions", false},
	{"did not find expected node content", "a value or a closing bracket is missing here", "close every [ and {",
		false},
	{"exceeded max depth", "nested too deeply", "", false},
}

// template is a key that begins with a brace, bareKey a line that is a key without its colon, and barePair one that has
// a value, too.
var (
	template = regexp.MustCompile(`^\s*(\{[a-z_]+\}[^\s:]*)\s*:`)
	bareKey  = regexp.MustCompile(`^(\s*)[A-Za-z_][A-Za-z0-9_.-]*$`)
	barePair = regexp.MustCompile(`^( *)([A-Za-z_][A-Za-z0-9_.-]*) +([^\s#][^:]*)$`)
)

// betterPlace finds mistakes that the YAML library reports somewhere behind them, and in other words: a name that needs
// quotes, and a key without its colon before its value or above an indented block. It is nil for any other.
func betterPlace(text Lines, p policy.Problem) *policy.Problem {
	if m := template.FindStringSubmatchIndex(p.Source); m != nil {
		p.Pos.Column = 1 + m[2]
		p.Msg, p.Hint = "a name that begins with { needs quotes", fmt.Sprintf("write `%q:`", p.Source[m[2]:m[3]])
		return &p
	}
	indent := func(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }
	inside := indent(p.Source)
	for at := p.Pos; at.Line > 1; {
		at.Line--
		at.Column = 1
		line := strings.TrimRight(text.At(at), " ")
		if m := barePair.FindStringSubmatch(line); m != nil && len(m[1]) == inside && at.Line == p.Pos.Line-1 {
			p.Pos, p.Source = at, line
			p.Pos.Column = len(m[1]) + len(m[2])
			p.Msg, p.Hint = "a colon is missing behind this key", fmt.Sprintf("write `%s: %s`", m[2], m[3])
			return &p
		}
		if line == "" || indent(line) >= inside {
			continue
		}
		if !bareKey.MatchString(line) {
			return nil
		}
		p.Pos, p.Source = at, line
		p.Pos.Column = len(line)
		p.Msg, p.Hint = "a colon is missing behind this key", "write `"+strings.TrimSpace(line)+":`"
		return &p
	}
	return nil
}

// syntaxProblem gives an error of the YAML library its place and plain words.
func syntaxProblem(s policy.Source, err error) policy.Problem {
	p := policy.Problem{Pos: policy.Pos{File: s.Path, Line: 1, Column: 1}, Msg: "not valid YAML: " + err.Error()}
	load := (*yaml.LoadError)(nil)
	if !errors.As(err, &load) {
		return p
	}
	place := func(m yaml.Mark) {
		if m.Line > 0 {
			p.Pos.Line, p.Pos.Column = m.Line, max(1, m.Column)
		}
	}
	text := NewLines([]policy.Source{s})
	place(load.Mark)
	p.Pos = text.Inside(p.Pos)
	p.Msg = "not valid YAML: " + load.Message
	p.Source = text.At(p.Pos)
	if tab := indentTab(p.Source); tab > 0 {
		p.Pos.Column = tab
		p.Msg, p.Hint = "a tab cannot indent YAML", "use spaces"
		return p
	}
	if better := betterPlace(text, p); better != nil {
		return *better
	}
	for _, rule := range syntaxRules {
		if !strings.Contains(load.Message, rule.fragment) {
			continue
		}
		p.Msg, p.Hint = rule.msg, rule.hint
		if rule.atContext {
			place(load.ContextMark)
			p.Pos = text.Inside(p.Pos)
			p.Source = text.At(p.Pos)
		}
		if strings.Contains(rule.msg, "%s") {
			p.Msg = fmt.Sprintf(rule.msg, characterAt(p.Source, p.Pos.Column))
		}
		break
	}
	return p
}

// indentTab is the column of a tab in the indentation of a line; 0 when there is none.
func indentTab(line string) int {
	for i, r := range line {
		switch r {
		case '\t':
			return i + 1
		case ' ':
		default:
			return 0
		}
	}
	return 0
}

func characterAt(line string, column int) string {
	if runes := []rune(line); column >= 1 && column <= len(runes) {
		return string(runes[column-1])
	}
	return "this character"
}
