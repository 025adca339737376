// Package access says who but root may do what with groups: the owners that the policy in force names, within the
// bounds that it gives them, and who may read. It goes by the peer credentials of the caller (api.Caller). A nil caller
// is root, who may do everything.
package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/state"
)

// admitted is who may ask the agent anything beside root: owners who may do something with a group, and readers.
type admitted struct {
	owners  []policy.Owner
	readers policy.Readers
}

// List holds who is admitted, as of the agent's last look; the zero value admits nobody. It is safe for concurrent use.
type List struct{ now atomic.Pointer[admitted] }

// Shut admits nobody.
func (l *List) Shut() { l.now.Store(nil) }

// Open admits whom a policy lets in.
func (l *List) Open(v *snapshot.Snapshot) {
	now := admitted{readers: v.Policy.Agent.Read}
	for _, g := range v.Classified.Groups {
		now.owners = append(now.owners, g.Owner...)
	}
	l.now.Store(&now)
}

// OpenToOthers says whether anybody but root may ask the agent anything, as of its last look.
func (l *List) OpenToOthers() bool {
	a := l.now.Load()
	return a != nil && (len(a.owners) > 0 || a.readers == policy.ReadEveryone)
}

// Admits says whether a caller owns any group, and whether it may read what is in force, as of the agent's last look.
// What an owner may do is decided anew, by the policy in force, when it is asked for.
func (l *List) Admits(who api.Caller) (owns, reads bool) {
	a := l.now.Load()
	if a == nil {
		return false, false
	}
	owns = slices.ContainsFunc(a.owners, who.Is)
	return owns, a.readers == policy.ReadEveryone || owns && a.readers != policy.ReadRoot
}

// May refuses what the policy in force gives a caller no right to; root, which is no caller, may do everything.
func May(c *api.Caller, v *snapshot.Snapshot, group string, right policy.Right) error {
	if c == nil || len(rights(c, v, group, right)) > 0 {
		return nil
	}
	return api.Errorf(api.CodeRefused, "the policy says who may, as `owner` of the group; root may in any case",
		"uid %d may not %s in group %q", c.UID, right, group)
}

// rights are the owners of a group that the caller is and that have a right.
func rights(c *api.Caller, v *snapshot.Snapshot, group string, right policy.Right) (rights []policy.Owner) {
	for _, g := range v.Classified.Groups {
		for _, o := range g.Owner {
			if g.Path == group && c.Is(o) && o.Has(right) {
				rights = append(rights, o)
			}
		}
	}
	return rights
}

// MaySet refuses a value outside the bounds that the policy in force gives the caller.
func MaySet(c *api.Caller, v *snapshot.Snapshot, group string, s policy.Setting) error {
	if c == nil {
		return nil
	}
	if err := mayName(c, v, group, s); err != nil {
		return err
	}
	owners := rights(c, v, group, policy.MaySet)
	if snapshot.MaySet(owners, s, v.Facts) {
		return nil
	}
	var bounds []string
	for _, o := range owners {
		if b, bounded := o.Bounds[s.Key]; bounded {
			bounds = append(bounds, b.String())
		}
	}
	if len(bounds) == 0 {
		return api.Errorf(api.CodeRefused, "its `owner` has bounds for what may be set; root may set anything",
			"uid %d may not set %s of group %q", c.UID, s.Key, group)
	}
	return api.Errorf(api.CodeRefused, fmt.Sprintf("uid %d may set it within %s", c.UID, bounds[0]),
		"%s:%s=%s is out of bounds",
		group, s.Key, s.Value)
}

// mayName refuses paths but the nodes of devices that the kernel lists and those that the policy names for the group:
// root would tell whether they exist, and whoever owns one could take it away. /dev/shm is for everybody to write to.
func mayName(c *api.Caller, v *snapshot.Snapshot, group string, s policy.Setting) error {
	node := func(d blockdev.Device) bool { return "/dev/"+strings.ReplaceAll(d.Name, "!", "/") == s.On }
	if !strings.HasPrefix(s.On, "/") || slices.ContainsFunc(v.Facts.Devices, node) {
		return nil
	}
	for _, g := range v.Classified.Groups {
		if g.Path == group && slices.ContainsFunc(g.Settings,
			func(known policy.Setting) bool { return known.On == s.On }) {
			return nil
		}
	}
	return api.Errorf(api.CodeRefused,
		"name the device, /dev/sdb or 8:16, or a path that the policy names for the group",
		"uid %d may not name the path %s", c.UID, s.On)
}

// mostOwned is how many limits of a group may be set by its owners at a time.
const mostOwned = 64

// MayReplace refuses an owner to lay something over what root has set for the same limit, or to take that away.
func MayReplace(c *api.Caller, overrides []state.Override, group string, key policy.Key) error {
	if c == nil {
		return nil
	}
	if err := SetByRoot(overrides, group, key); err != nil {
		return err
	}
	own := 0
	for _, o := range overrides {
		if o.Group == group && o.Owner != 0 {
			own++
		}
	}
	if own >= mostOwned {
		return api.Errorf(api.CodeRefused, "unset some", "%d limits of group %q are set by its owners already", own,
			group)
	}
	return nil
}

// sameFile says whether two keys are written to one file of the kernel.
func sameFile(a, b policy.Key) bool {
	cpus := func(k policy.Key) policy.Key {
		if k == policy.KeyCPUNUMA {
			return policy.KeyCPUCPUs
		}
		return k
	}
	return cpus(a) == cpus(b)
}

// SetByRoot says that a limit is none of an owner's business now.
func SetByRoot(overrides []state.Override, group string, key policy.Key) error {
	for _, o := range overrides {
		if o.Group == group && sameFile(o.Key, key) && o.Owner == 0 {
			return api.Errorf(api.CodeRefused, "ask whoever did; `bulkhead status` shows until when it holds",
				"%s:%s was set by %s", o.Group, o.Key, o.By)
		}
	}
	return nil
}

// MayTake refuses to move processes that are not the caller's alone, or that are in a group out of which the caller may
// not bring them: root put them under its limits.
func MayTake(c *api.Caller, v *snapshot.Snapshot, h *host.Host, procs ...procfs.Process) error {
	if c == nil {
		return nil
	}
	for _, p := range procs {
		whose, err := h.Proc.Identity(p.PID)
		if errors.Is(err, procfs.ErrExited) || err == nil && !h.Proc.Alive(p.ID) {
			return api.Errorf(api.CodeUsage, "", "process %d (%s) has ended", p.PID, p.Comm)
		}
		if err != nil {
			return api.Errorf(api.CodeFailed, "", "whose is process %d: %w", p.PID, err)
		}
		if whose.UID != c.UID || !whose.Sole {
			return api.Errorf(api.CodeRefused, "an owner moves its own processes alone",
				"process %d (%s) is not that of uid %d alone", p.PID, p.Comm, c.UID)
		}
		for _, at := range groupsAround(v, p) {
			if err := May(c, v, at, policy.MayMove); err != nil {
				return fmt.Errorf("take process %d (%s) out of its group: %w", p.PID, p.Comm, err)
			}
		}
	}
	return nil
}

// groupsAround are the groups whose directories hold a process, in any hierarchy, and the one that it belongs to.
func groupsAround(v *snapshot.Snapshot, p procfs.Process) []string {
	var groups []string
	add := func(group string) {
		if group != "" && !slices.Contains(groups, group) {
			groups = append(groups, group)
		}
	}
	for hierarchy, at := range p.Cgroups {
		if group, ours := v.Layout.Group(cgroup.Dir{Hierarchy: hierarchy, Path: at}); ours {
			add(group)
		}
	}
	for _, m := range v.Members {
		if m.Process.ID == p.ID {
			add(m.Group)
		}
	}
	return groups
}

// MayRefreeze refuses an owner to change the end of a freeze that root began.
func MayRefreeze(c *api.Caller, freezes []state.Freeze, group string) error {
	for _, f := range freezes {
		if c != nil && f.Group == group && f.Owner == 0 {
			return api.Errorf(api.CodeRefused, "root may `bulkhead thaw` it", "group %q was frozen by %s", group, f.By)
		}
	}
	return nil
}
