package classify

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/classify/matchkey"
	"bulkhead/internal/classify/pattern"
	"bulkhead/internal/engine"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
)

// compiled is a match with its patterns ready. It holds nothing of a host, so one serves many looks.
type compiled struct {
	match    policy.Match
	score    int
	server   *procfs.ID // the instance of the enclosing template: its main process
	instance bool       // asks which instance, without a server
	exe      pattern.Name
	program  pattern.Program
	ancestor pattern.Name
	unit     pattern.Name
	cgroup   pattern.Cgroup
	cmdline  *regexp.Regexp
	literal  string // stands in every command line that cmdline matches; "" if none is known
	except   []*compiled
}

// compile makes a match ready. inst is the instance of the enclosing template, nil outside of one.
func compile(m policy.Match, inst *engine.Instance) (*compiled, error) {
	c := &compiled{}
	if bound, ok := bind(m, inst); ok {
		m, c.server = bound, &inst.Main
	}
	var err error
	for _, p := range []struct {
		key, text string
		into      *pattern.Name
	}{{"exe", m.Exe, &c.exe}, {"ancestor", m.Ancestor, &c.ancestor}, {"unit", unitName(m.Unit), &c.unit}} {
		if *p.into, err = pattern.New(p.text); err != nil {
			return nil, fmt.Errorf("read %s %q: %w", p.key, p.text, err)
		}
	}
	if c.cgroup, err = pattern.NewCgroup(m.Cgroup); err != nil {
		return nil, fmt.Errorf("read cgroup %q: %w", m.Cgroup, err)
	}
	if m.Cmdline != "" {
		if c.cmdline, err = regexp.Compile(m.Cmdline); err != nil {
			return nil, fmt.Errorf("read cmdline %q: %w", m.Cmdline, err)
		}
		c.literal = pattern.RequiredLiteral(m.Cmdline)
	}
	c.program = pattern.NewProgram(m.Program)
	m.Except = slices.Clone(m.Except)
	for i := range m.Except {
		x, err := compile(m.Except[i], inst)
		if err != nil {
			return nil, err
		}
		c.except = append(c.except, x)
		m.Except[i] = x.match
	}
	c.match, c.score = m, matchkey.Score(&m)
	c.instance = c.server == nil && (m.Engine != "" || names(m))
	return c, nil
}

// unitName completes a unit name as systemctl does: without a type it is a service.
func unitName(name string) string {
	if name == "" || isUnit(name) {
		return name
	}
	return name + ".service"
}

func isUnit(name string) bool {
	return strings.HasSuffix(name, ".service") || strings.HasSuffix(name, ".scope") || strings.HasSuffix(name, ".slice")
}
