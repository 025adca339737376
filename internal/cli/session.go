package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"strconv"
	"time"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/render/warnings"
	"bulkhead/internal/cli/screen"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/control"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"
	"bulkhead/internal/transaction"
)

// output is where a verb reads and writes, and in which form it answers.
type output struct {
	json           bool
	answered       bool // with JSON: an error after it is said on stderr alone, so that stdout holds one value
	in             io.Reader
	out, err       io.Writer // for people: what others chose is escaped, and long lines are wrapped
	text           io.Writer // for text whose lines mean something, such as a policy: escaped, never wrapped
	stdout, stderr io.Writer // for programs, and for what steers the terminal itself
}

// printJSON writes an answer as JSON.
func (o *output) printJSON(v any) error {
	o.answered = true
	return render.JSON(o.stdout, v)
}

// print answers with a value as JSON, or with text for people.
func (o *output) print(v any, text func()) error {
	if o.json {
		return o.printJSON(v)
	}
	text()
	return nil
}

// session is what the verbs share that read or change the host: where the policy, the state and the agent are.
type session struct {
	form usage.PlanForm // of the plan that a verb prints
	output
	screen                *screen.Screen
	waited                func() // ends the line that says how long a verb has been at work
	policy, state, socket string // flags of every verb
}

// atSteps changes how a verb goes on at the steps of a plan: nothing does, but in binaries that are built for root
// tests.
var atSteps = func(*transaction.Options) {}

// euid is who runs this program: root, but for tests.
var euid = os.Geteuid

// open opens the controller and says what is wrong with the state directory.
func (s *session) open() (*transaction.Controller, error) {
	o := transaction.Options{State: s.state, Log: warnings.Logger(s.err), Watchdog: s.watchdogArgs(),
		Probe: s.probeArgs()}
	atSteps(&o)
	if then := o.AfterStep; then == nil && s.screen != nil {
		o.AfterStep = func(i int, _ plan.Step) { s.screen.Step(i + 1) }
	}
	c, err := transaction.Open(o)
	if errors.Is(err, fs.ErrPermission) && euid() != 0 {
		return nil, &api.Error{Code: api.CodeFailed, Err: err, Hint: "only root may read it: run it with sudo"}
	}
	if err != nil {
		return nil, err
	}
	for _, w := range c.Warnings() {
		render.Println(s.err, "warning:", w)
	}
	return c, nil
}

// groups names the groups of the applied policy, for completion: nothing where they cannot be told at once.
func (s *session) groups(ctx context.Context) (names []string) {
	ctx, stop := context.WithTimeout(ctx, 2*time.Second)
	defer stop()
	s.err = io.Discard
	if st, err := readStatus(ctx, s); err == nil {
		for _, g := range st.Groups {
			names = append(names, g.Group)
		}
	}
	return names
}

// look opens the controller for a verb that needs only the host, and so runs for everybody.
func (s *session) look() (*transaction.Controller, error) {
	if euid() == 0 {
		return s.open()
	}
	render.Println(s.err, "not root: what other users' processes run and listen on stays hidden, so "+
		"databases may be missed")
	return transaction.Open(transaction.Options{NoState: true, Log: warnings.Logger(s.err)})
}

// logger writes the log of what runs in the background on stderr.
func (s *session) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(render.Printable(s.stderr, 0), &slog.HandlerOptions{Level: level}))
}

// ownerHint says how others than root get something done.
const ownerHint = "run it with sudo; where the agent runs, an `owner` that the policy names may do it"

// needRoot refuses early, with a word about it, what only root can do.
func needRoot(verb string) error {
	if euid() == 0 {
		return nil
	}
	return &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("%s needs root", verb), Hint: "run it with sudo"}
}

// do has a changing verb done, by the agent when one runs on the same state directory.
func (s *session) do(ctx context.Context, q api.Request) (*api.Reply, bool, error) {
	q.By = who()
	running, err := s.agent(ctx)
	if err != nil {
		return nil, false, err
	}
	if running == nil && euid() != 0 {
		return nil, false, &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("%s needs root", q.Verb),
			Hint: ownerHint}
	}
	if running != nil {
		reply, err := running.Do(ctx, q)
		// The emergency exit is the same done twice, so it goes on without an agent that died over it.
		again := errors.Is(err, client.ErrSilent) || q.Verb == "release" && errors.Is(err, client.ErrCut)
		if !again || ctx.Err() != nil || euid() != 0 {
			return reply, true, err
		}
		render.Println(s.err, "warning: going on without the agent:", err)
	}
	c, err := s.open()
	if err != nil {
		return nil, false, err
	}
	defer c.Close()
	reply, err := control.Do(ctx, c, q)
	return reply, false, err
}

// agent gives the running agent, or nil. One that hangs must not stand in the way: the emergency exit
// works without it.
func (s *session) agent(ctx context.Context) (*client.Client, error) {
	c, err := client.Dial(ctx, s.socket, s.state)
	if errors.Is(err, client.ErrSilent) {
		render.Println(s.err, "warning: going on without the agent:", err)
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

// runArgs are how this program is called for the verb run, up to its name.
func (s *session) runArgs() []string {
	return []string{"bulkhead", "--policy", s.policy, "--state", s.state, "--socket", s.socket, "run"}
}

// applyPolicy puts the policy file in force, as part of another verb.
func (s *session) applyPolicy(ctx context.Context, reason string) error {
	sources, err := yamlform.Read(s.policy)
	if err != nil {
		return err
	}
	_, _, err = s.do(ctx, api.Request{Verb: "apply", Reason: reason, Sources: sources})
	return err
}

// watchdogArgs are the arguments that make this program a watchdog of changes recorded in the same state directory.
func (s *session) watchdogArgs() []string { return []string{"--state", s.state, "watchdog"} }

// probeArgs are the arguments that make this program a load of a probe.
func (s *session) probeArgs() []string { return []string{"--state", s.state, "probe-load"} }

// parsed reads the policy file, without the host.
func (s *session) parsed() (*policy.Policy, error) {
	sources, err := yamlform.Read(s.policy)
	if err != nil {
		return nil, err
	}
	return parse.Policy(sources)
}
