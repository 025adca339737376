package resolve

import (
	"fmt"
	"slices"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// Resolver answers what Facts alone cannot. Its zero value takes paths as they are written.
type Resolver struct {
	// EvalSymlinks gives a path without symbolic links, as filepath.EvalSymlinks does on the host.
	// When it is nil, a path that does not exist goes unnoticed and links are not followed.
	EvalSymlinks func(path string) (string, error)
	// Names gives what is in a directory of the host, for hints. nil: none.
	Names func(dir string) ([]string, error)
	// Storage gives what files lie on. It is asked at most once, and only when a limit names a target. When it is nil,
	// the facts have to do, which do not know the devices of a btrfs and the cache of a bcache.
	Storage func() (*blockdev.Storage, error)
	// Interface finds the network interface that a name, "default" or a network means. When it is nil, names are taken
	// as they are written. An *ErrNoInterface says that there is none.
	Interface func(on string) (policy.Interface, error)
	// Host is the host part of the policy, for ResolveSetting; Resolve goes by the policy's own.
	Host *policy.HostPart
}

// roleDefaults is the design's table of roles. Nothing else comes from a role.
var roleDefaults = map[policy.Role]policy.Settings{
	policy.RoleDatabase: {{Key: policy.KeyCPUWeight, Value: policy.Weight(1000)},
		{Key: policy.KeyIOWeight, Value: policy.Weight(1000)}},
	policy.RoleHelper: {{Key: policy.KeyCPUWeight, Value: policy.Weight(10)},
		{Key: policy.KeyIOWeight, Value: policy.Weight(10)}},
	policy.RoleBatch: {{Key: policy.KeyCPUWeight, Value: policy.Weight(1)},
		{Key: policy.KeyCPUIdle, Value: policy.Flag(true)}, {Key: policy.KeyIOWeight, Value: policy.Weight(1)}},
}

// Limits is the resolved settings of one group, for Check.
type Limits struct {
	Group, Parent string // paths; the parent of a group at the top is ""
	Settings      policy.Settings
	Model         *policy.MemoryModel
}

// limits lists a group and those below it.
func limitsOf(g *policy.Group, all []Limits, parent string) []Limits {
	all = append(all, Limits{g.Path, parent, g.Settings, g.Model})
	for _, child := range g.Groups {
		all = limitsOf(child, all, g.Path)
	}
	return all
}

// resolution is what one run knows of the policy and the host, and what it finds. Its parts are types of their own over
// it: limits and weights on disks, limits on interfaces, and the checks of settings against each other.
type resolution struct {
	Resolver
	*yamlform.Report
	facts *host.Facts
	notes []policy.Note
	disks *blockdev.Storage // once it was asked for
}

// RoleSettings is what the role of a group asks.
func RoleSettings(g *policy.Group) policy.Settings {
	defaults := roleDefaults[g.Role].Settle("role " + string(g.Role))
	for i := range defaults {
		defaults[i].Pos = g.Pos
	}
	return Under(defaults, g.Settings)
}

// Under is what stays of settings below those that are laid over them. A weight and "idle" exclude each other in the
// kernel (cpu.shares is EINVAL beside cpu.idle), so a role makes no group idle for which somebody asks for a weight.
func Under(weaker, laid policy.Settings) policy.Settings {
	if _, weighted := laid.Get(policy.KeyCPUWeight, ""); !weighted {
		return weaker
	}
	return slices.DeleteFunc(slices.Clone(weaker), func(s policy.Setting) bool {
		return s.Key == policy.KeyCPUIdle && s.FromRole()
	})
}

func strength(s policy.Setting) int {
	n := 0
	if s.From == "group" {
		n = 2
	}
	if s.On != "" {
		n++
	}
	return n
}

func (r *resolution) note(at policy.Pos, group, format string, args ...any) {
	n := policy.Note{Pos: at, Group: group, Text: fmt.Sprintf(format, args...)}
	if len(r.notes) == 0 || r.notes[len(r.notes)-1] != n { // once for the several keys of one io entry
		r.notes = append(r.notes, n)
	}
}

// void notes that a setting has no effect.
func (r *resolution) void(s policy.Setting, group, format string, args ...any) {
	r.notes = append(r.notes,
		policy.Note{Pos: s.Pos, Group: group, Text: fmt.Sprintf(format, args...), Void: true, Key: s.Key})
}

func (r *resolution) cores() policy.Cores { return policy.Cores(len(r.facts.CPUs)) * policy.One }

func (r *resolution) memory() policy.Bytes { return policy.Bytes(r.facts.MemTotal) }

// nodes gives the nodes that a setting names, and reports those that do not exist.
func (r *resolution) nodes(at policy.Pos, ids policy.IDs) []host.Node {
	var nodes []host.Node
	var all idset.Set
	for _, n := range r.facts.Nodes {
		all = append(all, n.ID)
		if ids.Contains(n.ID) {
			nodes = append(nodes, n)
		}
	}
	if missing := ids.Minus(all); len(missing) > 0 {
		r.Fail(at, fmt.Sprintf("nodes here: %s", all), "NUMA node %s does not exist on this host", missing)
	}
	return nodes
}

type (
	diskLimits struct{ *resolution }
	weights    struct{ diskLimits }
	interfaces struct{ *resolution }
	checks     struct{ *resolution }
)
