package manual

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
)

// name is that of a command's page: bulkhead-tune-apply.
func name(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

// verbPage is the page of a verb, or of the program: what its --help prints, in the order of a manual.
func verbPage(c *cobra.Command, f foot) string {
	p := newPage(name(c), "8", c.Short, f)
	p.section("SYNOPSIS")
	if c.HasAvailableSubCommands() {
		p.line(bold(c.CommandPath()) + " " + italic("VERB") + " [" + italic("flags") + "]")
	} else {
		p.line(bold(c.CommandPath()) + escape(strings.TrimPrefix(c.UseLine(), c.CommandPath())))
	}
	p.section("DESCRIPTION")
	p.prose(strings.TrimSpace(cmp.Or(c.Long, c.Short)))
	p.verbs(c)
	p.flags("OPTIONS", c.LocalFlags().FlagUsages())
	p.flags("OPTIONS OF EVERY VERB", c.InheritedFlags().FlagUsages())
	if !c.HasParent() {
		p.exitStatus()
	}
	if c.HasExample() {
		p.section("EXAMPLES")
		p.verbatim(outdented(strings.Split(strings.Trim(c.Example, "\n"), "\n"), room))
	}
	p.seeAlso(c)
	return p.String()
}

// verbs lists those of a command, below the headings of its help.
func (p *page) verbs(c *cobra.Command) {
	if !c.HasAvailableSubCommands() {
		return
	}
	p.section("VERBS")
	list := func(group string) {
		for _, verb := range c.Commands() {
			if verb.GroupID == group && (verb.IsAvailableCommand() || verb.Name() == "help") {
				p.item(bold(verb.Name()), verb.Short)
			}
		}
	}
	list("")
	for _, g := range c.Groups() {
		p.WriteString(".SS " + escape(strings.TrimSuffix(g.Title, ":")) + "\n")
		list(g.ID)
	}
}

// flagLine is a line of a list of flags: an indentation, the flag with what it takes, and what it does.
var flagLine = regexp.MustCompile(`^ +(\S.*?) {2,}(\S.*)$`)

// flags lists flags from the text that the help has of them.
func (p *page) flags(title, text string) {
	if text == "" {
		return
	}
	p.section(title)
	for line := range strings.Lines(text) {
		m := flagLine.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		var words []string
		for word := range strings.FieldsSeq(m[1]) {
			if strings.HasPrefix(word, "-") {
				words = append(words, bold(word))
			} else {
				words = append(words, italic(word))
			}
		}
		p.item(strings.Join(words, " "), m[2])
	}
}

// exitCodes are what each exit status means; docs/operations.md has the same.
var exitCodes = []struct {
	code api.Code
	text string
}{
	{0, "done"},
	{api.CodeFailed, "failed; nothing is half done"},
	{api.CodeUsage, "bad usage or bad policy"},
	{api.CodeChanges, "`plan --exit-code` found changes"},
	{api.CodeVerify, "`verify`, `verify --probe` or `status --check` found a limit that is not in force"},
	{api.CodeRefused, "refused for safety; `--force --reason TEXT` where that helps"},
	{api.CodeLocked, "somebody else is changing the host, or is the agent already; the message names them"},
	{api.CodeReleased, "`verify` or `status --check`: everything is released"},
	{api.CodeInterrupted, "`verify` or `status --check`: a change was interrupted; `bulkhead rollback` undoes it"},
	{api.CodeUnplaced, "`verify` or `status --check`: every limit is in force, but no agent places new processes"},
}

func (p *page) exitStatus() {
	p.section("EXIT STATUS")
	for _, e := range exitCodes {
		p.item(bold(strconv.Itoa(int(e.code))), e.text)
	}
}

// seeAlso names the pages above and below, and that of the policy.
func (p *page) seeAlso(c *cobra.Command) {
	var names []string
	if c.HasParent() {
		names = append(names, name(c.Parent()))
	}
	for _, verb := range c.Commands() {
		if verb.IsAvailableCommand() {
			names = append(names, name(verb))
		}
	}
	slices.Sort(names)
	p.section("SEE ALSO")
	var pages []string
	for _, n := range names {
		pages = append(pages, bold(n)+"(8)")
	}
	p.line(strings.Join(append(pages, bold("bulkhead-policy")+"(5)"), ", "))
}
