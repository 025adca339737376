package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/fromunit"
	"bulkhead/internal/bench/peer"
	"bulkhead/internal/scenario"
)

// governor puts the policy or the peer of an arm in force, and nothing else.
type governor struct {
	*fitted
	system    *systemUnderTest
	peer      *peer.Peer
	databases func() []*database.Instance
	texts     func() map[string]string // what policies and peers may say of the run
	applied   string                   // the policy in force
	policies  map[string]string        // the texts of those that were in force
	notes     []string                 // what bulkhead's plan says about their limits
	killed    map[string]int64         // OOM kills of the groups that there are, before the next arm
}

// govern makes the arm's policy or its peer's way be in force, its agent run, and nothing else. Of an arm with both the
// policy is put on what the peer has made, and goes before it.
func (g *governor) govern(ctx context.Context, arm scenario.Arm) error {
	g.system.stopAgent()
	if g.peer.Governs() {
		g.killed = nil
		if err := g.apply(ctx, ""); err != nil {
			return err
		}
		if err := g.peer.Release(ctx); err != nil {
			return err
		}
	}
	if arm.Peer != "" {
		if err := g.apply(ctx, ""); err != nil {
			return err
		}
		fill := func(t scenario.Template) (string, error) { return t.Fill(g.texts(), g.value) }
		err := g.peer.Apply(ctx, g.scenario.Peers[arm.Peer], fill, g.databases())
		if err != nil || arm.Policy == "" {
			return err
		}
	}
	if err := g.apply(ctx, arm.Policy); err != nil || !arm.Agent {
		return err
	}
	return g.system.startAgent(ctx)
}

// apply makes a policy be in force; "" and "none" release what is.
func (g *governor) apply(ctx context.Context, name string) error {
	if name == "none" {
		name = ""
	}
	if name == g.applied {
		return nil
	}
	g.killed = nil // of groups that go, or that others may take the place of
	if name == "" {
		g.applied = ""
		return g.system.releaseAll(ctx)
	}
	text, err := g.policyText(name)
	if err != nil {
		return err
	}
	if err := g.system.writePolicy(text); err != nil {
		return err
	}
	if _, asked := g.policies[name]; !asked {
		g.policies[name] = text
		notes, err := g.system.notes(ctx)
		if err != nil {
			return err
		}
		for _, n := range notes {
			// policies have much in common
			if text := strings.TrimPrefix(n.Group+" ", " ") + n.Key + ": " + n.Text; !slices.Contains(g.notes, text) {
				g.notes = append(g.notes, text)
			}
		}
	}
	g.applied = name
	return g.system.apply(ctx)
}

// gather puts databases that were started meanwhile into the groups that are in force.
func (g *governor) gather(ctx context.Context) error {
	if err := g.peer.Classify(ctx, g.databases()); err != nil || g.applied == "" {
		return err
	}
	return g.system.apply(ctx)
}

// governed says whether a policy or a peer's groups are in force.
func (g *governor) governed() bool { return g.applied != "" || g.peer.Governs() }

// inside makes a command start inside a group, where one governs.
func (g *governor) inside(group string) func([]string) []string {
	switch {
	case group == "" || !g.governed():
		return nil
	case g.applied != "":
		return func(args []string) []string { return g.system.run(group, args) }
	}
	return func(args []string) []string { return g.peer.Wrap(group, args) }
}

// policyText is the text of a policy as the run applies it.
func (g *governor) policyText(name string) (string, error) {
	text, err := g.scenario.Policies[name].Fill(g.texts(), g.value)
	if err == nil && g.machine.facts.Systemd {
		text, err = fromunit.TakenOut(text)
	}
	if err != nil {
		return "", fmt.Errorf("make policy %q: %w", name, err)
	}
	return text, nil
}
