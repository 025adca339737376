package scenario

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// Expression is arithmetic over names: "max(16, 8*cpus)". Nothing in it depends on where it is evaluated but
// the values of its names.
type Expression struct {
	text string
	root node
}

// node is one number, name, operation or function.
type node struct {
	kind   byte // 'n' number, 'v' name, '+' '-' '*' '/', 'f' function
	number float64
	name   string
	args   []node
}

// functions are what an expression may call, with the least number of arguments.
var functions = map[string]struct {
	least int
	do    func([]float64) float64
}{
	"min": {1, func(a []float64) float64 {
		m := a[0]
		for _, x := range a {
			m = math.Min(m, x)
		}
		return m
	}},
	"max": {1, func(a []float64) float64 {
		m := a[0]
		for _, x := range a {
			m = math.Max(m, x)
		}
		return m
	}},
	"floor": {1, func(a []float64) float64 { return math.Floor(a[0]) }},
	"ceil":  {1, func(a []float64) float64 { return math.Ceil(a[0]) }},
	"abs":   {1, func(a []float64) float64 { return math.Abs(a[0]) }},
}

// maxExpression bounds the length of an expression, and so its depth.
const maxExpression = 500

// ParseExpression reads an expression.
func ParseExpression(text string) (Expression, error) {
	if len(text) > maxExpression {
		return Expression{}, fmt.Errorf("an expression of %d characters, more than %d", len(text), maxExpression)
	}
	p := parser{text: text}
	root, err := p.sum()
	if err == nil {
		if p.skip(); p.at < len(p.text) {
			err = fmt.Errorf("%q cannot stand here", p.text[p.at:])
		}
	}
	if err != nil {
		return Expression{}, fmt.Errorf("read expression %q: %w", text, err)
	}
	return Expression{text: text, root: root}, nil
}

// String is the expression as it was written.
func (e Expression) String() string { return e.text }

// Empty says that there is no expression.
func (e Expression) Empty() bool { return e.text == "" }

// Names gives the names that the expression uses, each as often as it stands there.
func (e Expression) Names() []string {
	var names []string
	var walk func(n node)
	walk = func(n node) {
		if n.kind == 'v' {
			names = append(names, n.name)
		}
		for _, a := range n.args {
			walk(a)
		}
	}
	walk(e.root)
	return names
}

// Eval computes the expression. A name without a value is NaN, and so is what is made of it.
func (e Expression) Eval(value func(name string) float64) float64 { return e.root.eval(value) }

func (n node) eval(value func(string) float64) float64 {
	args := make([]float64, len(n.args))
	for i, a := range n.args {
		args[i] = a.eval(value)
	}
	switch n.kind {
	case 'n':
		return n.number
	case 'v':
		return value(n.name)
	case '+':
		return args[0] + args[1]
	case '-':
		return args[0] - args[1]
	case '*':
		return args[0] * args[1]
	case '/':
		if args[1] == 0 {
			return math.NaN()
		}
		return args[0] / args[1]
	case 'f':
		return functions[n.name].do(args)
	}
	return math.NaN()
}

// parser reads an expression by recursive descent.
type parser struct {
	text string
	at   int
}

func (p *parser) skip() {
	for p.at < len(p.text) && p.text[p.at] == ' ' {
		p.at++
	}
}

// take takes one of the characters, after blanks; 0 when none of them is next.
func (p *parser) take(chars string) byte {
	if p.skip(); p.at < len(p.text) && strings.IndexByte(chars, p.text[p.at]) >= 0 {
		p.at++
		return p.text[p.at-1]
	}
	return 0
}

func (p *parser) sum() (node, error)     { return p.chain("+-", p.product) }
func (p *parser) product() (node, error) { return p.chain("*/", p.factor) }

func (p *parser) chain(operators string, part func() (node, error)) (node, error) {
	left, err := part()
	for err == nil {
		op := p.take(operators)
		if op == 0 {
			return left, nil
		}
		var right node
		right, err = part()
		left = node{kind: op, args: []node{left, right}}
	}
	return node{}, err
}

func (p *parser) factor() (node, error) {
	switch p.take("(-") {
	case '(':
		n, err := p.sum()
		if err == nil && p.take(")") == 0 {
			err = fmt.Errorf("a ( is not closed")
		}
		return n, err
	case '-':
		n, err := p.factor()
		return node{kind: '-', args: []node{{kind: 'n'}, n}}, err
	}
	start := p.at
	for p.at < len(p.text) && (unicode.IsLetter(rune(p.text[p.at])) || unicode.IsDigit(rune(p.text[p.at])) ||
		strings.IndexByte("._", p.text[p.at]) >= 0) {
		p.at++
	}
	word := p.text[start:p.at]
	switch {
	case word == "" && p.at == len(p.text):
		return node{}, fmt.Errorf("it ends where a number or a name is wanted")
	case word == "":
		return node{}, fmt.Errorf("%q is neither a number nor a name", p.text[p.at:])
	case unicode.IsDigit(rune(word[0])):
		n, err := strconv.ParseFloat(word, 64)
		if err != nil || math.IsInf(n, 0) {
			return node{}, fmt.Errorf("%q is not a number", word)
		}
		return node{kind: 'n', number: n}, nil
	case p.take("(") != 0:
		return p.call(word)
	}
	return node{kind: 'v', name: word}, nil
}

func (p *parser) call(name string) (node, error) {
	f, known := functions[name]
	if !known {
		return node{}, fmt.Errorf("there is no function %q, only abs, ceil, floor, max and min", name)
	}
	n := node{kind: 'f', name: name}
	for {
		arg, err := p.sum()
		if err != nil {
			return node{}, err
		}
		n.args = append(n.args, arg)
		switch p.take(",)") {
		case ')':
			if len(n.args) < f.least {
				return node{}, fmt.Errorf("%s needs %d arguments", name, f.least)
			}
			return n, nil
		case 0:
			return node{}, fmt.Errorf("a ( is not closed")
		}
	}
}
