package selinux

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/loaded"
	"bulkhead/internal/selinux/verdict"
)

// view is what the verb says.
type view struct {
	Read    []string `json:"read"`
	Lines   int      `json:"lines"`
	Denials int      `json:"denials"`
	Allowed int      `json:"allowed_in_permissive_mode"`
	// State is of this host's kernel, Asked what was asked of it.
	State    string   `json:"selinux"`
	Asked    string   `json:"asked"`
	NotAsked []string `json:"not_asked"`
	// Lost says why the log may not have all denials, Unread what of it cannot be read.
	Lost   []string `json:"lost"`
	Unread []unread `json:"unread"`
	*verdict.Report
}

type unread struct {
	Line int    `json:"line"`
	Why  string `json:"why"`
}

func (v *view) fill(log *avc.Log, host loaded.Host, r *verdict.Report) {
	v.Lines, v.Denials, v.State, v.Asked = log.Lines, len(log.Denials), host.State, host.Policy
	v.NotAsked, v.Lost, v.Report = render.OrEmpty(host.Missing), render.OrEmpty(log.Lost), r
	v.Unread = []unread{}
	for _, u := range log.Unread {
		v.Unread = append(v.Unread, unread{Line: u.Line, Why: u.Why})
	}
	for _, g := range r.Verdicts {
		v.Allowed += g.Allowed
	}
}

// meanings of verdicts, for the table.
var meanings = map[verdict.Kind]string{
	verdict.Script:     "a script, or its program, looks at everything",
	verdict.Label:      "a file has another label than it should",
	verdict.Port:       "a port has another type than it should",
	verdict.Domain:     "a program runs in another domain than it should",
	verdict.Boolean:    "a narrow boolean allows it",
	verdict.Constraint: "users or ranges differ, and no rule helps",
	verdict.Rule:       "a rule is needed",
	verdict.Stale:      "it would be allowed by now",
}

func printView(out io.Writer, v *view) {
	render.Printf(out, "%s in %s of %s\n", render.Count(v.Denials, "denial", "denials"),
		render.Count(v.Lines, "line", "lines"), strings.Join(v.Read, ", "))
	if v.Allowed > 0 {
		render.Printf(out, "%d of them were in permissive mode: allowed all the same, and logged once for many\n",
			v.Allowed)
	}
	for _, m := range v.NotAsked {
		render.Printf(out, "not asked: %s\n", m)
	}
	render.Println(out)
	if v.Denials == 0 {
		render.Println(out, "Nothing was denied. Where something fails all the same, `dontaudit` rules may hide why:")
		render.Println(out, "`semodule -DB` shows them, and `semodule -B` hides them again.")
	} else {
		rows := [][]string{{"VERDICT", "GROUPS", "DENIALS", "WHAT IT IS"}}
		for _, k := range verdict.Kinds {
			denials := 0
			for _, g := range v.Of(k) {
				denials += g.Count
			}
			if denials > 0 {
				rows = append(rows, []string{string(k), strconv.Itoa(len(v.Of(k))), strconv.Itoa(denials), meanings[k]})
			}
		}
		render.Table(out, rows)
		for _, b := range blocksOf(v.Verdicts) {
			printBlock(out, b)
		}
		printRules(out, v)
	}
	for _, l := range v.Lost {
		render.Printf(out, "warning: %s\n", l)
	}
	for _, u := range v.Unread[:min(most, len(v.Unread))] {
		render.Printf(out, "warning: line %d: %s\n", u.Line, u.Why)
	}
	if more := len(v.Unread) - most; more > 0 {
		render.Printf(out, "and %s; --json has all\n", render.Count(more, "such line more", "such lines more"))
	}
}

// most is how many of many are printed.
const most = 3

// blocksOf puts groups together that one thing puts right.
func blocksOf(all []verdict.Verdict) (blocks [][]verdict.Verdict) {
	at := map[string]int{}
	for _, g := range all {
		key := string(g.Kind) + "\n" + strings.Join(g.Fix, "\n")
		if g.Kind == verdict.Rule {
			key += g.Needed
		}
		i, known := at[key]
		if !known {
			i = len(blocks)
			at[key] = i
			blocks = append(blocks, nil)
		}
		blocks[i] = append(blocks[i], g)
	}
	return blocks
}

func printBlock(out io.Writer, all []verdict.Verdict) {
	first := all[0]
	denials, commands := 0, map[string]bool{}
	for _, g := range all {
		denials += g.Count
		for _, c := range g.Commands {
			commands[c] = true
		}
	}
	by := ""
	if len(commands) > 0 {
		by = " of " + strings.Join(sorted(commands), ", ")
	}
	render.Printf(out, "%s: %s%s%s\n", first.Kind, render.Count(denials, "denial", "denials"), by, span(all))
	for _, g := range all[:min(most, len(all))] {
		if g.Kind != verdict.Rule {
			render.Printf(out, "  not   %s\n", g.Rule)
		}
	}
	if more := len(all) - most; more > 0 {
		render.Printf(out, "        and %s; --json has all\n", render.Count(more, "rule more", "rules more"))
	}
	say(out, "why", all, func(g verdict.Verdict) []string { return g.Because })
	say(out, "open", all, func(g verdict.Verdict) []string { return g.Undecided })
	for _, f := range first.Fix {
		render.Printf(out, "  do    %s\n", f)
	}
	say(out, "broad", all, func(g verdict.Verdict) (said []string) {
		for _, f := range g.Broad {
			said = append(said, fmt.Sprintf("%s: %s", f.Name, f.Why))
		}
		return said
	})
	shown := []verdict.Line{}
	for _, g := range all {
		shown = append(shown, g.Evidence...)
	}
	for _, l := range shown[:min(most, len(shown))] {
		render.Printf(out, "  line %d: %s\n", l.Number, l.Text)
	}
	render.Println(out)
}

// say prints what the groups of a block say, each sentence once.
func say(out io.Writer, what string, all []verdict.Verdict, of func(verdict.Verdict) []string) {
	said := []string{}
	for _, g := range all {
		for _, text := range of(g) {
			if !slices.Contains(said, text) {
				said = append(said, text)
			}
		}
	}
	const most = 8
	for _, text := range said[:min(most, len(said))] {
		render.Printf(out, "  %-5s %s\n", what, text)
	}
	if more := len(said) - most; more > 0 {
		render.Printf(out, "        and %d more; --json has all\n", more)
	}
}

func sorted(set map[string]bool) []string {
	var all []string
	for name := range set {
		all = append(all, name)
	}
	slices.Sort(all)
	return all
}

// span is when the denials of a block were.
func span(all []verdict.Verdict) string {
	const layout = "2006-01-02 15:04:05"
	first, last := all[0].First, all[0].Last
	for _, g := range all {
		if first.IsZero() || !g.First.IsZero() && g.First.Before(first) {
			first = g.First
		}
		if g.Last.After(last) {
			last = g.Last
		}
	}
	switch {
	case first.IsZero():
		return ""
	case first.Format(layout) == last.Format(layout):
		return ", " + first.Local().Format(layout)
	}
	return ", " + first.Local().Format(layout) + " to " + last.Local().Format(layout)
}

func printRules(out io.Writer, v *view) {
	if len(v.Rules) == 0 {
		render.Println(out, "No rule is needed.")
		return
	}
	render.Printf(out, "%s needed, once the rest is put right:\n", cmp.Or(map[bool]string{true: "One rule is"}[len(
		v.Rules) == 1], strconv.Itoa(len(v.Rules))+" rules are"))
	for _, r := range v.Rules {
		render.Printf(out, "  %s\n", r)
	}
}
