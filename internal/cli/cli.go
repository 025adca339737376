// Package cli is the command line. Each verb is a function that gives its cobra.Command, in a file of its own: it
// parses the arguments, calls control or the agent, and hands the answer to package render. Verbs share an output,
// which says where answers go, and a session, which says where the policy, the state and the agent are. Stdout carries
// the answer, stderr everything else.
//
// Main is the entry; it runs one verb and gives the exit code. Nothing here is meant to run twice in a process at once.
package cli

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/agent"
	"bulkhead/internal/api"
	"bulkhead/internal/apply"
	"bulkhead/internal/cli/advice"
	"bulkhead/internal/cli/copies"
	"bulkhead/internal/cli/manual"
	"bulkhead/internal/cli/memory"
	"bulkhead/internal/cli/proofs"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/schedule"
	"bulkhead/internal/cli/screen"
	"bulkhead/internal/cli/switches"
	"bulkhead/internal/cli/unit"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/transaction"
)

// Version, and the commit that it is of, are set at build time.
var (
	Version = "unreleased"
	Commit  = ""
)

// exit is an error that only carries an exit code: everything was said already.
type exit struct{ code int }

func (e exit) Error() string { return "exit " + strconv.Itoa(e.code) }

// Main runs the command line and gives the exit code. It calls end when a verb does not end by itself after a signal.
func Main(args []string, end func(code int)) int {
	// A signal that was ignored when we started stays ignored, also for the command that run becomes:
	// asking for it would undo that.
	ends := slices.DeleteFunc([]os.Signal{syscall.SIGINT, syscall.SIGTERM}, signal.Ignored)
	ctx, stop := context.Background(), context.CancelFunc(func() {})
	if len(ends) > 0 {
		ctx, stop = signal.NotifyContext(ctx, ends...)
	}
	defer stop()
	defer context.AfterFunc(ctx, func() {
		stop() // the next signal ends this process at once
		if onlyReads(args) {
			time.Sleep(graceTime)
			render.Println(os.Stderr, "bulkhead: interrupted")
			end(int(api.CodeFailed))
		}
	})()
	return runVerb(ctx, args, os.Stdin, os.Stdout, os.Stderr)
}

// graceTime is how long a verb that changes nothing may take to end by itself after a signal, wherever it waits.
const graceTime = 800 * time.Millisecond

// onlyReads says whether a command line is of a verb that leaves nothing to undo or to clean up.
func onlyReads(args []string) bool {
	c, _, err := rootCmd(&session{}).Find(args)
	if err != nil || !c.HasParent() {
		return err == nil
	}
	sub := c.Name()
	for c.Parent().HasParent() {
		c = c.Parent()
	}
	if slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "--prove") }) {
		return false
	}
	// verify's probes have loads to end, and behind run --dry-run is its command's.
	return slices.Contains(args, "--dry-run") && c.Name() != "run" ||
		c.GroupID == groupLook && c.Name() != "verify" || c.Name() == "import" || c.Name() == "export" ||
		c.Name() == "zfs" && (sub == "check" || sub == "list")
}

// runVerb is Main with its surroundings given, for tests.
func runVerb(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) int {
	on := screen.New(out, errw)
	out, errw = on.Out, on.Err
	s := &session{form: usage.PlanForm(plan.FormBrief), screen: on, waited: func() {},
		output: output{in: in, out: render.Printable(out, render.Width(out)),
			err: render.Printable(errw, render.Width(errw)), text: render.Printable(out, 0), stdout: out, stderr: errw}}
	root := rootCmd(s)
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(s.err)
	err := root.ExecuteContext(ctx)
	s.waited()
	s.json = s.json || usage.AsksForJSON(args, err)
	return s.report(err)
}

// report says an error on stderr and gives the exit code.
func (o *output) report(err error) int {
	var only exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &only):
		return only.code
	}
	var problems policy.Problems
	if errors.As(err, &problems) && o.json {
		_ = o.printJSON(render.ProblemsView(problems))
		return int(api.CodeUsage)
	} else if errors.As(err, &problems) {
		// Without our name before it, so that an editor finds file:line:column.
		for _, p := range problems {
			render.Problem(o.err, p)
		}
		render.Printf(o.err, "bulkhead: %s; nothing was changed\n",
			render.Count(len(problems), "problem", "problems"))
		return int(api.CodeUsage)
	}
	if o.json && !o.answered {
		hint := cmp.Or(api.HintOf(err), usage.HintOf(err))
		_ = o.printJSON(map[string]string{"error": err.Error(), "hint": hint})
	}
	render.Error(o.err, err)
	if hint := api.HintOf(err); hint != "" {
		render.Printf(o.err, "hint: %s\n", hint)
	}
	var refused *apply.RefusedError
	if errors.As(err, &refused) {
		said := false
		for _, r := range refused.Refusals {
			if r.Hint != "" {
				render.Printf(o.err, "hint: %s\n", r.Hint)
			}
			said = said || strings.Contains(r.Hint, "--force")
		}
		if !said {
			render.Println(o.err, "hint: --force --reason TEXT does it all the same; the history keeps the reason")
		}
	}
	if hint := usage.HintOf(err); hint != "" {
		render.Printf(o.err, "hint: %s\n", hint)
		return int(api.CodeUsage)
	}
	return int(api.CodeOf(err))
}

// The headings under which the verbs are listed.
const groupLook, groupChange, groupBack, groupOther = "look", "change", "back", "other"

// root builds the command tree.
func rootCmd(s *session) *cobra.Command {
	root := &cobra.Command{
		Use:   "bulkhead VERB",
		Short: "compartments for databases that share a Linux host",
		Long: `bulkhead gives each database instance on this host, with its helpers, its own
measured share of CPU, memory, disk and processes, so that a rogue neighbour
cannot take more.

Start here:
  bulkhead discover               what runs here, and what this kernel can hold
  bulkhead discover --as-policy   a policy to start from
  bulkhead check                  is the policy sound, also on this host?
  bulkhead plan                   what would apply do, group by group
  bulkhead apply                  do it, all or nothing
  bulkhead release --all          the emergency exit: give the host back`,
		SilenceErrors: true, SilenceUsage: true, Version: versionText(),
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	root.PersistentPreRun = func(c *cobra.Command, _ []string) {
		if usage.Ends(c) && s.screen != nil {
			s.waited = s.screen.Wait(c.CommandPath())
		}
	}
	flags := root.PersistentFlags()
	flags.StringVar(&s.policy, "policy", transaction.DefaultPolicy, "the policy `file`")
	s.state, s.socket = transaction.DefaultState, agent.DefaultSocket
	flags.Var((*usage.PathFlag)(&s.state), "state", "the state `directory`")
	flags.Var((*usage.PathFlag)(&s.socket), "socket", "the agent's `socket`")
	flags.BoolVar(&s.json, "json", false, "print JSON")
	addGroup(root, groupLook, "Look:", append(s.observing().Look(), discoverCmd(s), checkCmd(s), planCmd(s),
		advice.Command(s.out, s.look, s.print), statusCmd(s), memory.Command(s.out, s.look, s.print), explainCmd(s),
		switches.Command(s.out, s.look, s.print), selinuxCmd(s), verifyCmd(s), notesCmd(s),
		historyCmd(s), schedule.Command(schedule.Session{Out: s.out,
			Policy: &s.policy, Parsed: s.parsed, Print: s.print}))...)
	addGroup(root, groupChange, "Change:", applyCmd(s), setCmd(s), unsetCmd(s), tuneCmd(s), runCmd(s), moveCmd(s),
		freezeCmd(s), thawCmd(s), zfsCmd(s), confirmCmd(s))
	addGroup(root, groupBack, "Back:", rollbackCmd(s), releaseCmd(s))
	addGroup(root, groupOther, "And:", append(s.observing().Other(), agentCmd(s), importCmd(s), exportCmd(s),
		proofs.Command(proofs.Session{Out: s.out, Text: s.text, Stderr: s.stderr, Print: s.print, Commit: commit(),
			Failed: exit{int(api.CodeFailed)}}), manual.SchemaCommand(s.stdout),
		unit.Command(s.text, s.parsed, s.open, s.print), usage.CompletionCommand(s.stdout),
		versionCmd(&s.output))...)
	root.AddCommand(watchdogCmd(s), advice.OutsideCommand(s.look), probeLoadCmd(s), manual.Command())
	root.SetHelpCommand(usage.HelpCommand())
	root.SetHelpCommandGroupID(groupOther)
	root.SetUsageTemplate(usage.Template)
	root.SetHelpFunc(usage.Help(s.stdout, render.Width(s.stdout)))
	usage.Complete(root, s.groups)
	usage.Exemplify(root)
	root.Flags().Bool("version", false, "the version of this program")
	root.SetVersionTemplate("bulkhead {{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &usage.Error{Command: c.CommandPath(), Err: usage.FlagError(err)}
	})
	usage.Wrap(root)
	for _, c := range root.Commands() {
		for _, kind := range c.Commands() {
			usage.Wrap(kind)
		}
		usage.Wrap(c)
	}
	return root
}

// zfsCmd gives the verb zfs: a look, moves, snapshots, and copies.
func zfsCmd(s *session) *cobra.Command {
	c := advice.ZFS(s.out, s.look, s.print)
	c.AddCommand(copies.Session{Open: s.open, Print: s.print, Out: s.out, Err: s.err, State: &s.state, Who: who,
		Policy: &s.policy, Apply: s.applyPolicy, Run: s.runArgs}.Commands()...)
	return c
}

func addGroup(root *cobra.Command, id, title string, verbs ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: id, Title: title})
	for _, v := range verbs {
		v.GroupID = id
	}
	root.AddCommand(verbs...)
}
