package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/bench/process"
)

// product drives bulkhead's command line, with a policy, a state directory and a socket of the run's own.
type systemUnderTest struct {
	binary     string
	policy     string
	state      string
	socket     string
	supervisor *process.Supervisor
	// unreleased: groups were applied and could not be released yet.
	unreleased bool
	agent      *process.Child // nil: none runs
}

func newSystemUnderTest(binary, dir string, n *process.Supervisor) *systemUnderTest {
	return &systemUnderTest{
		binary:     binary,
		policy:     filepath.Join(dir, "policy.yaml"),
		state:      filepath.Join(dir, "state"),
		socket:     filepath.Join(dir, "agent.sock"),
		supervisor: n,
	}
}

// command is the argument list of one verb.
func (p *systemUnderTest) command(verb string, args ...string) []string {
	return append([]string{p.binary, "--policy", p.policy, "--state", p.state, "--socket", p.socket, verb}, args...)
}

// runAs is run as another user.
func (p *systemUnderTest) runAs(group, user string, command []string) []string {
	return append(p.command("run", group, "--user", user, "--"), command...)
}

// run is the argument list that starts a command inside a group, from its first instruction.
func (p *systemUnderTest) run(group string, command []string) []string {
	return append(p.command("run", group, "--"), command...)
}

func (p *systemUnderTest) writePolicy(text string) error {
	if err := os.WriteFile(p.policy, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write the policy: %w", err)
	}
	return nil
}

// do runs a verb and returns its answer.
func (p *systemUnderTest) do(ctx context.Context, verb string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var out, complaints bytes.Buffer
	err := p.supervisor.Run(ctx, process.Spec{Args: p.command(verb, args...), Stdout: &out, Stderr: &complaints})
	if err != nil {
		return "", fmt.Errorf("bulkhead %s %s: %w\n%s", verb, strings.Join(args, " "), err,
			process.LastLines(complaints.String(), 20))
	}
	return out.String(), nil
}

func (p *systemUnderTest) apply(ctx context.Context) error {
	p.unreleased = true
	_, err := p.do(ctx, "apply", "--reason", "bench")
	return err
}

// startAgent starts an agent beside the policy in force, and waits until it serves.
func (p *systemUnderTest) startAgent(ctx context.Context) (err error) {
	var said bytes.Buffer
	if p.agent, err = p.supervisor.Start(process.Spec{Args: p.command("agent"), Stderr: &said}); err != nil {
		return err
	}
	for range 100 {
		if _, err := os.Stat(p.socket); err == nil {
			return nil
		}
		process.Sleep(ctx, 50*time.Millisecond)
	}
	p.stopAgent()
	return fmt.Errorf("start the agent: it serves nobody after 5 s\n%s", process.LastLines(said.String(), 5))
}

// stopAgent ends the agent, if one runs; limits stay in force.
func (p *systemUnderTest) stopAgent() {
	if p.agent != nil {
		p.agent.Stop(agentEnds)
		p.agent = nil
	}
}

// agentEnds is how long an agent may take to end.
const agentEnds = 10 * time.Second

// releaseAll gives the host back and ends the agent. Without anything applied it does nothing.
func (p *systemUnderTest) releaseAll(ctx context.Context) error {
	p.stopAgent()
	if !p.unreleased {
		return nil
	}
	if _, err := p.do(ctx, "release", "--all", "--reason", "end of the proof"); err != nil {
		return err
	}
	p.unreleased = false
	return nil
}

// Note is something that bulkhead's plan says about a limit: that it is not held here, or how far it reaches.
type Note struct {
	Group       string `json:"group,omitempty"`
	Key         string `json:"key,omitempty"`
	Text        string `json:"text"`
	NotEnforced bool   `json:"not_enforced,omitempty"`
}

// notes asks the plan what this host does not hold, or not wholly.
func (p *systemUnderTest) notes(ctx context.Context) ([]Note, error) {
	out, err := p.do(ctx, "plan", "--json")
	if err != nil {
		return nil, err
	}
	return parseNotes([]byte(out))
}

// parseNotes picks what is said about limits out of `plan --json`.
func parseNotes(text []byte) ([]Note, error) {
	var answer struct {
		Notes []Note `json:"notes"`
	}
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("read the plan: %w", err)
	}
	return slices.DeleteFunc(answer.Notes, func(n Note) bool { return n.Key == "" && !n.NotEnforced }), nil
}
