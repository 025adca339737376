// Package peer sets up another tool's way to limit a proof's databases: groups of libcgroup's programs, and commands of
// tc and ip on the proof's own wire. A [Peer] is for one goroutine.
package peer

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/linux/family"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/scenario"
)

// Prefix begins the name of every group of a peer's arm, at the top of its hierarchies, where that peer's own would
// be.
const Prefix = "bulkhead-bench-peer-"

// Libcgroup is what a peer's arm is set up with: the documents' own commands.
var Libcgroup = []process.Program{
	{Name: "cgcreate", Package: "cgroup-tools"}, {Name: "cgset", Package: "cgroup-tools"},
	{Name: "cgexec", Package: "cgroup-tools"},
	{Name: "cgclassify", Package: "cgroup-tools"}, {Name: "cgdelete", Package: "cgroup-tools"},
	{Name: "lscgroup", Package: "cgroup-tools"},
}

// Peer is one that governs, or did.
type Peer struct {
	Paths      process.Programs
	Supervisor *process.Supervisor
	Proc       procfs.FS
	groups     []group
	undo       [][]string // commands that take its own back
}

type group struct {
	name        string // in the scenario
	controllers []string
}

func (g group) path() string {
	return strings.Join(g.controllers, ",") + ":/" + Prefix + g.name
}

// ControllersOf are the controllers that files belong to: what stands before the first dot of their names.
func ControllersOf(set []scenario.Assignment) []string {
	var names []string
	for _, a := range set {
		name, _, _ := strings.Cut(a.File, ".")
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Do runs one of the programs, and gives what it said.
func (p *Peer) Do(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var out, complaints bytes.Buffer
	if err := p.Supervisor.Run(ctx, process.Spec{Args: append([]string{p.Paths[name]}, args...), Stdout: &out,
		Stderr: &complaints}); err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err,
			process.LastLines(complaints.String(), 5))
	}
	return out.String(), nil
}

// Governs says whether anything of a peer's is in force.
func (p *Peer) Governs() bool { return len(p.groups)+len(p.undo) > 0 }

// commands runs those of a peer, in the namespace of the supervisor; what takes them back is known before the first.
func (p *Peer) commands(ctx context.Context, way scenario.Peer, fill func(scenario.Template) (string, error)) error {
	lines := func(all []scenario.Template) (filled [][]string, err error) {
		for _, t := range all {
			text, err := fill(t)
			if err != nil {
				return nil, err
			}
			filled = append(filled, strings.Fields(text))
		}
		return filled, nil
	}
	do, err := lines(way.Commands)
	if err != nil {
		return err
	}
	if p.undo, err = lines(way.Undo); err != nil {
		return err
	}
	for _, words := range do {
		if _, err := p.Do(ctx, words[0], words[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// Apply makes the groups, writes their files and puts the databases in, and runs the peer's commands.
func (p *Peer) Apply(ctx context.Context, way scenario.Peer, fill func(scenario.Template) (string, error),
	databases []*database.Instance) error {
	if err := p.commands(ctx, way, fill); err != nil {
		return err
	}
	for _, g := range way.Groups {
		made := group{g.Name, ControllersOf(g.Set)}
		if len(made.controllers) == 0 {
			continue
		}
		p.groups = append(p.groups, made)
		if _, err := p.Do(ctx, "cgcreate", "-g", made.path()); err != nil {
			return err
		}
		for _, a := range g.Set {
			value, err := fill(a.Value)
			if err != nil {
				return err
			}
			if _, err := p.Do(ctx, "cgset", "-r", a.File+"="+value, Prefix+g.Name); err != nil {
				return err
			}
		}
	}
	return p.Classify(ctx, databases)
}

// Classify puts databases that run into their groups, with the processes that they have started.
func (p *Peer) Classify(ctx context.Context, databases []*database.Instance) error {
	for _, g := range p.groups {
		for _, in := range databases {
			if in.Group != g.name || in.PID() == 0 {
				continue
			}
			for range 2 { // some start while the first ones are moved
				children, err := family.Children(p.Proc, in.PID())
				if err != nil {
					return err
				}
				if _, err := p.Do(ctx, "cgclassify", "-g", g.path(), strconv.Itoa(in.PID())); err != nil {
					return err
				}
				for _, pid := range children { // one that has ended need not move
					_, _ = p.Do(ctx, "cgclassify", "-g", g.path(), strconv.Itoa(pid))
				}
			}
		}
	}
	return nil
}

// Wrap is the argument list that starts a command inside a group; without such a group it is the command.
func (p *Peer) Wrap(name string, args []string) []string {
	for _, g := range p.groups {
		if g.name == name {
			return append([]string{p.Paths["cgexec"], "-g", g.path()}, args...)
		}
	}
	return args
}

// Release takes back what the commands did, and the groups away; libcgroup moves who is in them up.
func (p *Peer) Release(ctx context.Context) error {
	undo := p.undo
	p.undo = nil
	for _, words := range undo {
		if _, err := p.Do(ctx, words[0], words[1:]...); err != nil {
			return err
		}
	}
	if len(p.groups) == 0 {
		return nil
	}
	for _, g := range slices.Backward(p.groups) {
		// while a process of it is still ending it leaves directories, and may say so
		_, _ = p.Do(ctx, "cgdelete", "-g", g.path())
	}
	for began := time.Now(); ; {
		err := p.Sweep(ctx)
		if err == nil {
			p.groups = nil // not before: who is interrupted comes again
			return nil
		}
		if time.Since(began) > ends {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ends is how long the last process of a peer's group may take to end.
const ends = 5 * time.Second

// Sweep takes away groups that a killed run left.
func (p *Peer) Sweep(ctx context.Context) error {
	all, err := p.Do(ctx, "lscgroup")
	if err != nil {
		return err
	}
	for line := range strings.Lines(all) {
		line = strings.TrimSpace(line)
		controllers, path, found := strings.Cut(line, ":")
		if !found || !strings.HasPrefix(path, "/"+Prefix) || strings.Count(path, "/") > 1 {
			continue
		}
		if _, err := p.Do(ctx, "cgdelete", "-g", controllers+":"+path); err != nil {
			return err
		}
	}
	return nil
}
