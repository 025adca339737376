// Package cli is the command line: one file per verb, each of which parses its arguments, calls
// control or the agent, and renders the answer. Stdout carries the answer, stderr everything else.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/agent"
	"bulkhead/internal/apply"
	"bulkhead/internal/control"
	"bulkhead/internal/policy"
)

// Version is set at build time.
var Version = "unreleased"

// app is what every verb shares.
type app struct {
	policy, state, socket string
	json                  bool
	in                    io.Reader
	out, err              io.Writer // for people
	stdout, stderr        io.Writer // for programs, and for what steers the terminal itself
}

// exit is an error that only carries an exit code: everything was said already.
type exit struct{ code int }

func (e exit) Error() string { return "exit " + strconv.Itoa(e.code) }

// Main runs the command line and gives the exit code.
func Main(args []string) int {
	// A signal that was ignored when we started stays ignored, also for the command that run becomes:
	// asking for it would undo that.
	ends := slices.DeleteFunc([]os.Signal{syscall.SIGINT, syscall.SIGTERM}, signal.Ignored)
	ctx, stop := context.Background(), context.CancelFunc(func() {})
	if len(ends) > 0 {
		ctx, stop = signal.NotifyContext(ctx, ends...)
	}
	defer stop()
	return run(ctx, args, os.Stdin, os.Stdout, os.Stderr)
}

// run is Main with its surroundings given, for tests.
func run(ctx context.Context, args []string, in io.Reader, out, errw io.Writer) int {
	a := &app{in: in, out: printable{out}, err: printable{errw}, stdout: out, stderr: errw}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(a.err)
	return a.report(root.ExecuteContext(ctx))
}

// report says an error on stderr and gives the exit code.
func (a *app) report(err error) int {
	var only exit
	switch {
	case err == nil:
		return 0
	case errors.As(err, &only):
		return only.code
	}
	var problems policy.Problems
	if errors.As(err, &problems) {
		if a.json {
			if err := a.printJSON(problemsView(problems)); err != nil {
				fmt.Fprintf(a.err, "bulkhead: %v\n", err)
			}
		}
		// Without our name before it, so that an editor finds file:line:column.
		fmt.Fprintf(a.err, "%v\nbulkhead: %s; nothing was changed\n", err, count(len(problems), "problem", "problems"))
		return int(control.CodeUsage)
	}
	fmt.Fprintf(a.err, "bulkhead: %v\n", err)
	if hint := control.HintOf(err); hint != "" {
		fmt.Fprintf(a.err, "hint: %s\n", hint)
	}
	var refused *apply.RefusedError
	if errors.As(err, &refused) {
		said := false
		for _, r := range refused.Refusals {
			if r.Hint != "" {
				fmt.Fprintf(a.err, "hint: %s\n", r.Hint)
			}
			said = said || strings.Contains(r.Hint, "--force")
		}
		if !said {
			fmt.Fprintln(a.err, "hint: --force --reason TEXT does it all the same; the history keeps the reason")
		}
	}
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(a.err, "hint: `%s --help` shows how\n", usage.command)
		return int(control.CodeUsage)
	}
	return int(control.CodeOf(err))
}

// The headings under which the verbs are listed.
const (
	groupLook   = "look"
	groupChange = "change"
	groupBack   = "back"
	groupOther  = "other"
)

// root builds the command tree.
func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "bulkhead VERB",
		Short: "compartments for databases that share a Linux host",
		Long: `bulkhead gives each database instance on this host, with its helpers, its own measured share of
CPU, memory, disk and processes, so that a rogue neighbour cannot take more.

Start here:
  bulkhead discover               what runs here, and what this kernel can hold
  bulkhead discover --as-policy   a policy to start from
  bulkhead check                  is the policy sound, also on this host?
  bulkhead plan                   what would apply do, file by file
  bulkhead apply                  do it, all or nothing
  bulkhead release --all          the emergency exit: give the host back`,
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
	}
	flags := root.PersistentFlags()
	flags.StringVar(&a.policy, "policy", control.DefaultPolicy, "the policy `file`")
	flags.StringVar(&a.state, "state", control.DefaultState, "the state `directory`")
	flags.StringVar(&a.socket, "socket", agent.DefaultSocket, "the agent's `socket`")
	flags.BoolVar(&a.json, "json", false, "print JSON")
	addGroup(root, groupLook, "Look:", a.discoverCmd(), a.checkCmd(), a.planCmd(), a.statusCmd(), a.explainCmd(), a.verifyCmd(), a.historyCmd(), a.scheduleCmd())
	addGroup(root, groupChange, "Change:", a.applyCmd(), a.setCmd(), a.unsetCmd(), a.runCmd(), a.moveCmd(), a.freezeCmd(), a.thawCmd(), a.confirmCmd())
	addGroup(root, groupBack, "Back:", a.rollbackCmd(), a.releaseCmd())
	addGroup(root, groupOther, "And:", a.agentCmd(), a.importCmd(), a.exportCmd(), a.benchCmd(), a.schemaCmd(), a.completionCmd(), a.versionCmd())
	root.AddCommand(a.watchdogCmd(), a.probeLoadCmd())
	root.SetHelpCommand(a.helpCmd())
	root.SetHelpCommandGroupID(groupOther)
	root.SetUsageTemplate(usageTemplate)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return &usageError{command: c.CommandPath(), err: flagError(err)}
	})
	wrapArgs(root)
	for _, c := range root.Commands() {
		for _, kind := range c.Commands() {
			wrapArgs(kind)
		}
		wrapArgs(c)
	}
	return root
}

func addGroup(root *cobra.Command, id, title string, verbs ...*cobra.Command) {
	root.AddGroup(&cobra.Group{ID: id, Title: title})
	for _, v := range verbs {
		v.GroupID = id
	}
	root.AddCommand(verbs...)
}

// atSteps changes how a verb goes on at the steps of a plan: nothing does, but in binaries that are built for root tests.
var atSteps = func(*control.Options) {}

// open opens the controller and says what is wrong with the state directory.
func (a *app) open() (*control.Controller, error) {
	o := control.Options{State: a.state, Log: a.logger(slog.LevelWarn), Watchdog: a.watchdogArgs(), Probe: a.probeArgs()}
	atSteps(&o)
	c, err := control.Open(o)
	if errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0 {
		return nil, &control.Error{Code: control.CodeFailed, Err: err, Hint: "only root may read it: run it with sudo"}
	}
	if err != nil {
		return nil, err
	}
	for _, w := range c.Warnings() {
		fmt.Fprintln(a.err, "warning:", w)
	}
	return c, nil
}

// look opens the controller for a verb that needs only the host, and so runs for everybody.
func (a *app) look() (*control.Controller, error) {
	if os.Geteuid() == 0 {
		return a.open()
	}
	fmt.Fprintln(a.err, "not root: what other users' processes run and listen on stays hidden, so databases may be missed")
	return control.Open(control.Options{NoState: true, Log: a.logger(slog.LevelWarn)})
}

// logger writes for people on stderr.
func (a *app) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}))
}

// ownerHint says how others than root get something done.
const ownerHint = "run it with sudo; where the agent runs, an `owner` that the policy names may do it"

// needRoot refuses early, with a word about it, what only root can do.
func needRoot(verb string) error {
	if os.Geteuid() == 0 {
		return nil
	}
	return &control.Error{Code: control.CodeFailed, Err: fmt.Errorf("%s needs root", verb), Hint: "run it with sudo"}
}

// do has a changing verb done, by the agent when one runs on the same state directory.
func (a *app) do(ctx context.Context, q control.Request) (*control.Reply, bool, error) {
	q.By = who()
	running, err := a.agent(ctx)
	if err != nil {
		return nil, false, err
	}
	if running == nil && os.Geteuid() != 0 {
		return nil, false, &control.Error{Code: control.CodeFailed, Err: fmt.Errorf("%s needs root", q.Verb), Hint: ownerHint}
	}
	if running != nil {
		reply, err := running.Do(ctx, q)
		// The emergency exit is the same done twice, so it goes on without an agent that died over it.
		again := errors.Is(err, agent.ErrSilent) || q.Verb == "release" && errors.Is(err, agent.ErrCut)
		if !again || ctx.Err() != nil || os.Geteuid() != 0 {
			return reply, true, err
		}
		fmt.Fprintln(a.err, "warning: going on without the agent:", err)
	}
	c, err := a.open()
	if err != nil {
		return nil, false, err
	}
	defer c.Close()
	reply, err := c.Do(ctx, q)
	return reply, false, err
}

// agent gives the running agent, or nil. One that hangs must not stand in the way: the emergency exit
// works without it.
func (a *app) agent(ctx context.Context) (*agent.Client, error) {
	c, err := agent.Dial(ctx, a.socket, a.state)
	if errors.Is(err, agent.ErrSilent) {
		fmt.Fprintln(a.err, "warning: going on without the agent:", err)
		return nil, nil //nolint:nilnil // as if there were none
	}
	return c, err
}

// who names the person behind the command, for the history.
func who() string {
	name := "uid " + strconv.Itoa(os.Getuid())
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if sudo := os.Getenv("SUDO_USER"); sudo != "" {
		name = sudo + " (sudo)"
	}
	return name
}

// printJSON writes an answer as JSON.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// change holds the flags of every verb that changes the host.
type change struct {
	reason        string
	dryRun, force bool
	migrate       bool
	confirm       time.Duration
}

func (ch *change) flags(c *cobra.Command) {
	c.Flags().StringVar(&ch.reason, "reason", "", "why, for the history")
	c.Flags().BoolVar(&ch.dryRun, "dry-run", false, "say what would be done, do nothing")
	c.Flags().BoolVar(&ch.force, "force", false, "do it although it is refused; needs --reason")
}

// onTrial adds the flag of changes that may wait to be confirmed.
func (ch *change) onTrial(c *cobra.Command) {
	spanFlag(c, &ch.confirm, "confirm-within", 0, "undo it after this time unless bulkhead confirm comes before")
}

// migration adds the flag of changes that may change NUMA nodes.
func (ch *change) migration(c *cobra.Command) {
	c.Flags().BoolVar(&ch.migrate, "migrate", false, "change NUMA nodes of groups that have memory on those they lose")
}

func (ch *change) request(verb string) control.Request {
	return control.Request{Verb: verb, Reason: ch.reason, DryRun: ch.dryRun, Force: ch.force, ConfirmWithin: ch.confirm, Migrate: ch.migrate}
}
