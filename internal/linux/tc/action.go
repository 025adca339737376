package tc

import (
	"encoding/binary"
	"slices"

	"bulkhead/internal/linux/nlattr"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// actionsOf is the attribute that holds the actions of a filter, by its kind.
var actionsOf = map[string]int{
	"u32": nl.TCA_U32_ACT, "flower": nl.TCA_FLOWER_ACT, "matchall": nl.TCA_MATCHALL_ACT, "bpf": nl.TCA_BPF_ACT,
}

// action is one action of a filter. Its parameters lie in the record's options.
type action struct {
	kind  string
	parms []byte // begins with struct tc_gen; nil for a kind that is not read here
}

// genKinds are the kinds whose parameters are attribute 2 (TCA_MIRRED_PARMS, TCA_GACT_PARMS, TCA_SKBEDIT_PARMS).
var genKinds = []string{"mirred", "gact", "skbedit"}

func (r Record) actions() []action {
	var all []action
	list, _ := nlattr.Find(r.Options, actionsOf[r.Kind])
	for _, one := range nlattr.All(list) {
		kind, ok := nlattr.Find(one, nl.TCA_ACT_KIND)
		if !ok {
			continue
		}
		a := action{kind: unix.ByteSliceToString(kind)}
		options, _ := nlattr.Find(one, nl.TCA_ACT_OPTIONS)
		if parms, _ := nlattr.Find(options, nl.TCA_MIRRED_PARMS); slices.Contains(genKinds, a.kind) &&
			len(parms) >= genSize && (a.kind != mirred || len(parms) >= mirredSize) {
			a.parms = parms
		}
		all = append(all, a)
	}
	return all
}

// alone says that nobody but this filter uses the action.
func (a action) alone() bool {
	return a.parms != nil &&
		binary.NativeEndian.Uint32(a.parms[genRefs:]) <= 1 && binary.NativeEndian.Uint32(a.parms[genBinds:]) <= 1
}

// redirects says that the action sends packets to an interface, by its index; 0 is one that is gone.
func (a action) redirects() (index int, ok bool) {
	if a.kind != mirred || a.parms == nil {
		return 0, false
	}
	return int(binary.NativeEndian.Uint32(a.parms[mirredIndex:])), true
}

// RedirectOf finds where the first action of a filter sends packets.
func RedirectOf(r Record) (index int, ok bool) {
	if all := r.actions(); len(all) > 0 {
		return all[0].redirects()
	}
	return 0, false
}

// Redirects gives the indexes of the interfaces that the actions of a filter send packets to; 0 is one that is gone.
func (r Record) Redirects() []int {
	var all []int
	for _, a := range r.actions() {
		if index, ok := a.redirects(); ok {
			all = append(all, index)
		}
	}
	return all
}

// Redirected is the filter with other interfaces in the place of those that Redirects gives.
func (r Record) Redirected(to []int) Record {
	r.Options = slices.Clone(r.Options)
	for _, a := range r.actions() {
		if _, ok := a.redirects(); ok && len(to) > 0 {
			binary.NativeEndian.PutUint32(a.parms[mirredIndex:], uint32(to[0]))
			to = to[1:]
		}
	}
	return r
}

// redirectsAlone says of a filter with "mirred" actions that each can be made anew: no other filter uses it, and the
// interface is there.
func (r Record) redirectsAlone() bool {
	some := false
	for _, a := range r.actions() {
		if index, ok := a.redirects(); a.kind == mirred && (!ok || index == 0 || !a.alone()) {
			return false
		}
		some = some || a.kind == mirred
	}
	return some
}

// numberless leaves out the numbers of actions that only this filter uses. The kernel numbers the actions of a kind by
// itself. With a number that another filter's action has by then, this filter would share that one (seen on 6.1).
func numberless(r Record) Record {
	r.Options = slices.Clone(r.Options)
	for _, a := range r.actions() {
		if a.alone() {
			clear(a.parms[:genCapab])
		}
	}
	return r
}
