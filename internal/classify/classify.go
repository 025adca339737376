package classify

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/terminal"
)

// Classify places every process that a rule or a pin claims. The order of the processes, of the groups
// and of their rules does not matter.
func Classify(groups []Group, in Input) Result {
	l := newLook(in)
	return classifyIn(l, newIndex(l, groups), groups)
}

// classifyIn is Classify with the index of the rules.
func classifyIn(l *look, x *index, groups []Group) Result {
	c := classifier{look: l, index: x, groups: paths(groups), conflicts: make(map[string]*conflict),
		placements: make([]Placement, 0, l.in.Room)}
	notes := c.knowRivals(groups)
	c.classifyAgent()
	for _, s := range l.subjects {
		c.classify(s)
	}
	c.checkListeners(groups)
	for _, x := range c.conflicts {
		c.problems = append(c.problems, x.problem())
	}
	notes = append(notes, c.rateNotes(groups)...)
	return Result{Groups: c.sessionGroups(groups),
		Placements: c.placements, Skips: c.skips, Problems: sortProblems(c.problems), Notes: notes}
}

type classifier struct {
	look       *look
	index      *index
	groups     map[string]bool
	matched    []*Rule // scratch of one process
	placements []Placement
	skips      []Skip
	problems   policy.Problems
	conflicts  map[string]*conflict
	rivals     map[procfs.ID]string // main process of an instance without a group → group that it would have made
	listeners  []listenerClaim
	sessions   map[string]bool // groups of sessions to be made
}

// classify decides about a process and does it.
func (c *classifier) classify(s *subject) {
	if s.settled {
		s.verdict = s.before.verdict
	} else {
		s.verdict = c.decide(s)
	}
	c.enact(s, &s.verdict)
}

// decide holds a process against pins and rules.
func (c *classifier) decide(s *subject) verdict {
	c.matched = c.index.matching(c.look, s, c.matched[:0])
	slices.SortFunc(c.matched, compareRules)
	v := verdict{lasting: true}
	if what := c.untouchable(s); what != "" && len(c.matched) > 0 {
		v.lasting = false // problems are told anew
		for _, r := range c.matched {
			c.problems = append(c.problems, untouchableProblem(r, s, what))
		}
	}
	v.text = c.look.protected(s)
	if pin, from, ok := c.look.pinned(s, c.groups); ok {
		if v.decision, v.group = skipped, pin; v.text == "" {
			v.decision, v.text = pinned, from
		}
		return v
	}
	if len(c.matched) == 0 {
		return v
	}
	top := best(c.matched)
	winner := deepest(top)
	switch {
	case sharesListener(s):
		v.decision, v.top, v.lasting = listening, top, false
	case v.text != "":
		v.decision, v.group = skipped, cmp.Or(winner, top[0]).Group
	case winner == nil:
		v.decision, v.top, v.lasting = ambiguous, top, false
	default:
		v.decision, v.rule = ruled, winner
	}
	return v
}

// enact puts a verdict into the result.
func (c *classifier) enact(s *subject, v *verdict) {
	switch v.decision {
	case unclaimed:
		if !c.skipRival(s, v.text) && v.text == "" {
			c.gather(s)
		}
	case ruled:
		c.placements = append(c.placements, Placement{
			Process: *s.p, Group: v.rule.Group, By: ByRule,
			Rule: v.rule.Text, Pos: v.rule.Match.Pos, Score: v.rule.compiled.score,
		})
	case pinned:
		c.placements = append(c.placements, Placement{Process: *s.p, Group: v.group, By: ByPin, Rule: v.text})
	case skipped:
		c.skips = append(c.skips, Skip{Process: *s.p, Group: v.group, Reason: v.text})
	case ambiguous:
		c.conflict(v.top, s)
		c.skips = append(c.skips, Skip{
			Process: *s.p, Group: v.top[0].Group, Ambiguous: true,
			Reason: fmt.Sprintf("a rule of %q matches it equally well", v.top[1].Group),
		})
	case listening:
		c.listeners = append(c.listeners, listenerClaim{s, v.top[0]})
	}
}

// compareRules orders rules of one score by their place in the policy, so that nothing depends on the
// order in which they were tried.
func compareRules(a, b *Rule) int {
	return cmp.Or(cmp.Compare(b.compiled.score, a.compiled.score), comparePos(a.Match.Pos, b.Match.Pos),
		cmp.Compare(a.Group, b.Group), cmp.Compare(a.Index, b.Index))
}

// best returns the rules of the highest score, one for each group, of rules in the order of compareRules.
func best(matched []*Rule) []*Rule {
	var top []*Rule
	for _, r := range matched {
		if r.compiled.score < matched[0].compiled.score {
			break
		}
		if !slices.ContainsFunc(top, func(t *Rule) bool { return t.Group == r.Group }) {
			top = append(top, r)
		}
	}
	return top
}

// deepest returns the rule whose group lies inside the groups of all others, nil when there is none.
func deepest(rules []*Rule) *Rule {
	deep := rules[0]
	for _, r := range rules[1:] {
		if len(r.Group) > len(deep.Group) {
			deep = r
		}
	}
	for _, r := range rules {
		if r != deep && !strings.HasPrefix(deep.Group, r.Group+"/") {
			return nil
		}
	}
	return deep
}

// pinned returns the group that run or move gave to a process or to its nearest ancestor with a pin.
func (l *look) pinned(s *subject, groups map[string]bool) (group, from string, ok bool) {
	if len(l.in.Pins) == 0 {
		return "", "", false
	}
	if g, ok := l.in.Pins[s.p.ID]; ok && groups[g] {
		return g, "placed by run or move", true
	}
	for p := range l.chain(s) {
		if g, ok := l.in.Pins[p.p.ID]; ok && groups[g] && !l.in.Alone[p.p.ID] {
			return g, fmt.Sprintf("descends from process %d, which run or move placed", p.p.PID), true
		}
	}
	return "", "", false
}

// untouchable names the processes that no rule may match: PID 1 and the agent. Other processes of its executable are
// calls that soon end, and `bulkhead run` about to become what it runs: these may look like anything.
func (c *classifier) untouchable(s *subject) string {
	switch {
	case s.p.PID == 1:
		return "PID 1 (" + terminal.Printable(cmp.Or(strings.TrimPrefix(path.Base(s.p.Exe), "."), s.p.Comm)) + ")"
	case s.p.ID == c.look.in.Self, c.look.verb(s.p) == agentVerb:
		return fmt.Sprintf("bulkhead itself (process %d)", s.p.PID)
	}
	return ""
}

// verb is that of a call of bulkhead, "" of another program's.
func (l *look) verb(p *procfs.Process) string {
	if l.in.SelfExe == "" || p.Exe != l.in.SelfExe || len(p.Args) == 0 {
		return ""
	}
	for args := p.Args[1:]; len(args) > 0; args = args[1:] {
		switch arg := args[0]; {
		case slices.Contains(valueFlags, arg) && len(args) > 1:
			args = args[1:]
		case !strings.HasPrefix(arg, "-"):
			return arg
		}
	}
	return ""
}

// valueFlags are the flags before the verb whose value is an argument of its own.
var valueFlags = []string{"--policy", "--state", "--socket"}

// The verbs of the agent and of the loads of a probe on their command lines.
const (
	agentVerb = "agent"
	loadVerb  = "probe-load"
)

// classifyAgent holds the rules against the agent when none runs, as it would look: a policy must not
// become wrong by starting it. Where it sits and who starts it is not known.
func (c *classifier) classifyAgent() {
	exe := c.look.in.SelfExe
	if self := c.look.byPID[c.look.in.Self.PID]; exe == "" || self != nil && self.p.ID == c.look.in.Self {
		return
	}
	s := &subject{p: &procfs.Process{Exe: exe, Comm: path.Base(exe), Args: []string{exe, agentVerb}, State: 'S',
		Threads: 1}}
	for _, r := range c.index.matching(c.look, s, nil) {
		c.problems = append(c.problems, untouchableProblem(r, s, "bulkhead itself (its agent, when it runs)"))
	}
}

// knowRivals notes the instances that get no group because another one has the name.
func (c *classifier) knowRivals(groups []Group) (notes []policy.Note) {
	c.rivals = make(map[procfs.ID]string)
	for i := range groups {
		g := &groups[i]
		for _, r := range g.Rivals {
			c.rivals[r.Main] = g.Path
			n := policy.Note{Pos: g.Pos, Group: g.Path, Text: fmt.Sprintf(
				"%s of user %s (process %d) gets no group: %q is taken by %s, and its limits do not reach this one", r,
				terminal.Printable(r.User), r.Main.PID, g.Path, g.Instance)}
			if r.Apart != "" {
				n.Text += "; with " + r.Apart + " in the template's name each has its own"
			}
			notes = append(notes, n)
		}
	}
	return notes
}

// skipRival says why a process of a rival instance has no group; false when it is of none.
func (c *classifier) skipRival(s *subject, protected string) bool {
	if s.instance == nil || protected != "" {
		return false
	}
	group, ok := c.rivals[s.instance.Main]
	if ok {
		c.skips = append(c.skips, Skip{Process: *s.p, Group: group, Ambiguous: true,
			Reason: fmt.Sprintf("it belongs to %s, a second instance of that name", s.instance)})
	}
	return ok
}

func untouchableProblem(r *Rule, s *subject, what string) policy.Problem {
	hint := "match something narrower"
	if s.p.Exe != "" {
		hint = fmt.Sprintf("add `except: [{exe: %s}]`, or match something narrower",
			terminal.Printable(path.Base(s.p.Exe)))
	}
	return policy.Problem{
		Pos:  r.Match.Pos,
		Msg:  fmt.Sprintf("group %q would take %s: it matches {%s}", r.Group, what, r.Text),
		Hint: hint,
	}
}

// conflict collects the processes that the same equally specific rules claim.
type conflict struct {
	rules     []*Rule
	processes []*procfs.Process // by pid
}

func (c *classifier) conflict(rules []*Rule, s *subject) {
	var id strings.Builder
	for _, r := range rules {
		fmt.Fprintf(&id, "%s %d\n", r.Group, r.Index)
	}
	x := c.conflicts[id.String()]
	if x == nil {
		x = &conflict{rules: rules}
		c.conflicts[id.String()] = x
	}
	x.processes = append(x.processes, s.p)
}

func (x *conflict) problem() policy.Problem {
	who := fmt.Sprintf("process %d (%s)", x.processes[0].PID, terminal.Printable(x.processes[0].Comm))
	if more := len(x.processes) - 1; more > 0 {
		who = fmt.Sprintf("%s and %d more", who, more)
	}
	var claims []string
	var also []policy.Pos
	for i, r := range x.rules {
		claims = append(claims, fmt.Sprintf("%q by {%s}", r.Group, r.Text))
		if i > 0 {
			also = append(also, r.Match.Pos)
		}
	}
	return policy.Problem{
		Pos:  x.rules[0].Match.Pos,
		Msg:  fmt.Sprintf("%s belongs equally well to %s", who, strings.Join(claims, " and ")),
		Hint: "add a key to the rule that should win, or take the process out of the other with `except`",
		Also: also,
	}
}

// index keeps rules by a key that a process must have exactly, so that few are tried on each process.
type index struct {
	byServer map[procfs.ID][]*Rule // main process of the instance
	byExe    map[string][]*Rule    // base name
	byUser   map[int][]*Rule
	others   []*Rule
}

func newIndex(l *look, groups []Group) *index {
	x := &index{
		byServer: make(map[procfs.ID][]*Rule),
		byExe:    make(map[string][]*Rule),
		byUser:   make(map[int][]*Rule),
	}
	for g := range groups {
		for i := range groups[g].Rules {
			r := &groups[g].Rules[i]
			c := r.compiled
			switch {
			case c.server != nil:
				x.byServer[*c.server] = append(x.byServer[*c.server], r)
			case c.match.Exe != "" && !c.exe.Glob:
				base := path.Base(c.exe.Text)
				x.byExe[base] = append(x.byExe[base], r)
			case c.match.Program != "" && !c.program.Begin:
				base := path.Base(c.program.Text)
				x.byExe[base] = append(x.byExe[base], r)
			case c.match.User != "":
				uid := l.uid(c.match.User)
				x.byUser[uid] = append(x.byUser[uid], r)
			default:
				x.others = append(x.others, r)
			}
		}
	}
	return x
}

// matching appends the rules that a process meets.
func (x *index) matching(l *look, s *subject, to []*Rule) []*Rule {
	try := func(rules []*Rule) {
		for _, r := range rules {
			if r.compiled.try(l, s) == holds {
				to = append(to, r)
			}
		}
	}
	if s.instance != nil {
		try(x.byServer[s.instance.Main])
	}
	for _, h := range s.helps {
		if s.instance == nil || h.instance.Main != s.instance.Main {
			try(x.byServer[h.instance.Main])
		}
	}
	if s.p.Exe != "" {
		try(x.byExe[path.Base(s.p.Exe)])
		if name := path.Base(s.p.Script); s.p.Script != "" && name != path.Base(s.p.Exe) {
			try(x.byExe[name])
		}
	}
	try(x.byUser[s.p.UID])
	try(x.others)
	return to
}
