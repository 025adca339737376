package rule

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"

	"bulkhead/internal/advise/fact"
)

// maxCost bounds what one expression may take, in CEL's units: about one for each operation.
const maxCost = 100_000

// Expression is a condition over facts.
type Expression struct {
	Text    string
	Reads   []string // the facts that it names, sorted
	program cel.Program
}

// environment declares the facts, and since(version, "7.0").
var environment = sync.OnceValues(func() (*cel.Env, error) {
	kinds := map[fact.Type]*cel.Type{fact.Number: cel.IntType, fact.Text: cel.StringType, fact.Flag: cel.BoolType,
		fact.List: cel.ListType(cel.StringType)}
	options := []cel.EnvOption{cel.Function("since", cel.Overload("since_string_string",
		[]*cel.Type{cel.StringType, cel.StringType}, cel.BoolType,
		cel.BinaryBinding(func(have, want ref.Val) ref.Val {
			return types.Bool(fact.Since(string(have.(types.String)), string(want.(types.String))))
		})))}
	for _, r := range fact.Table {
		options = append(options, cel.Variable(r.Name, kinds[r.Type]))
	}
	return cel.NewEnv(options...)
})

// compile reads an expression that gives a type: yes or no, or a text. The error names what is wrong, with the place in
// the expression.
func compile(text string, gives *cel.Type) (*Expression, error) {
	env, err := environment()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	if ast.OutputType() != gives {
		want := "yes or no"
		if gives == cel.StringType {
			want = "a text"
		}
		return nil, fmt.Errorf("it gives a %s, not %s", cel.FormatCELType(ast.OutputType()), want)
	}
	e := &Expression{Text: text}
	for _, r := range ast.NativeRep().ReferenceMap() {
		if _, isFact := fact.Find(r.Name); isFact { // others are variables of the expression's own
			e.Reads = append(e.Reads, r.Name)
		}
	}
	slices.Sort(e.Reads)
	e.Reads = slices.Compact(e.Reads)
	e.program, err = env.Program(ast, cel.EvalOptions(cel.OptPartialEval), cel.CostLimit(maxCost))
	return e, err
}

// UndecidedError says which facts are missing for an expression.
type UndecidedError struct{ Facts []string }

func (e *UndecidedError) Error() string { return "unknown: " + strings.Join(e.Facts, ", ") }

// Holds evaluates the expression. Where facts are unknown and the others do not decide it, the error is an
// *UndecidedError.
func (e *Expression) Holds(values fact.Values) (bool, error) {
	out, err := e.eval(values)
	if err != nil {
		return false, err
	}
	is, ok := out.Value().(bool)
	if !ok {
		return false, errors.New("evaluate " + strconv.Quote(e.Text) + ": neither yes nor no")
	}
	return is, nil
}

// Gives evaluates an expression that gives a text; errors are those of Holds.
func (e *Expression) Gives(values fact.Values) (string, error) {
	out, err := e.eval(values)
	if err != nil {
		return "", err
	}
	text, ok := out.Value().(string)
	if !ok {
		return "", errors.New("evaluate " + strconv.Quote(e.Text) + ": not a text")
	}
	return text, nil
}

func (e *Expression) eval(values fact.Values) (ref.Val, error) {
	known := map[string]any{}
	var unknown []*cel.AttributePatternType
	for _, name := range e.Reads {
		if v := values.Get(name); v.Unknown == "" {
			known[name] = v.Is
		} else {
			unknown = append(unknown, cel.AttributePattern(name))
		}
	}
	vars, err := cel.PartialVars(known, unknown...)
	if err != nil {
		return nil, fmt.Errorf("evaluate %q: %w", e.Text, err)
	}
	out, _, err := e.program.Eval(vars)
	if err != nil {
		return nil, fmt.Errorf("evaluate %q: %w", e.Text, err)
	}
	if u, is := out.(*types.Unknown); is {
		missing := &UndecidedError{}
		for _, id := range u.IDs() {
			trails, _ := u.GetAttributeTrails(id)
			for _, t := range trails {
				missing.Facts = append(missing.Facts, t.Variable())
			}
		}
		slices.Sort(missing.Facts)
		missing.Facts = slices.Compact(missing.Facts)
		return nil, missing
	}
	return out, nil
}
