package scenario

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Template is text with ${…} in it: the name of a text that the run knows, or an expression.
type Template struct {
	Text  string
	parts []part
}

// part is plain text, or what stands between ${ and }.
type part struct {
	text string
	hole Expression
	name string // not empty: the hole holds a name alone
}

// ParseTemplate reads a template.
func ParseTemplate(text string) (Template, error) {
	t := Template{Text: text}
	for {
		plain, rest, found := strings.Cut(text, "${")
		t.parts = append(t.parts, part{text: plain})
		if !found {
			return t, nil
		}
		inner, after, closed := strings.Cut(rest, "}")
		if !closed {
			return Template{}, fmt.Errorf("${ without a } behind it")
		}
		p := part{}
		var err error
		if p.hole, err = ParseExpression(strings.TrimSpace(inner)); err != nil {
			return Template{}, err
		}
		if p.hole.root.kind == 'v' {
			p.name = p.hole.root.name
		}
		t.parts = append(t.parts, p)
		text = after
	}
}

// Names gives the names that stand between ${ and }.
func (t Template) Names() []string {
	var names []string
	for _, p := range t.parts {
		if !p.hole.Empty() {
			names = append(names, p.hole.Names()...)
		}
	}
	return names
}

// Fill puts the values in. A name that is neither a text nor a number is an error.
func (t Template) Fill(texts map[string]string, value func(string) float64) (string, error) {
	var b strings.Builder
	for _, p := range t.parts {
		b.WriteString(p.text)
		if p.hole.Empty() {
			continue
		}
		if text, known := texts[p.name]; p.name != "" && known {
			b.WriteString(text)
			continue
		}
		x := p.hole.Eval(value)
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return "", fmt.Errorf("fill ${%s}: it has no value", p.hole)
		}
		b.WriteString(Figure(x))
	}
	return b.String(), nil
}

// Figure writes a number as a policy wants it: whole where it is, else with two decimals at most.
func Figure(x float64) string {
	return strconv.FormatFloat(math.Round(x*100)/100, 'f', -1, 64)
}
