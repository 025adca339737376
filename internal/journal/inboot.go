package journal

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/procfs"
)

// InBoot is what bulkhead has changed on the host since one boot and not given back. It is of the moment in which it is
// asked.
type InBoot struct {
	store *Store
	boot  string
}

// InBoot gives what is known of a boot; one that nothing was recorded for is empty.
func (s *Store) InBoot(boot string) InBoot { return InBoot{s, boot} }

// state needs the mutex of the store.
func (v InBoot) state() *bootState { return v.store.state.boot(v.boot) }

// Made is the directories that bulkhead made and has not removed, those of an open
// transaction included.
func (v InBoot) Made() map[cgroup.Dir]bool {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	made := maps.Clone(v.state().made)
	if p := v.store.state.pending; p != nil && p.Boot == v.boot {
		for _, c := range p.Changes {
			if d, is := cgroup.DirOf(c.Target); is && c.New != "" {
				made[d] = true
			}
		}
	}
	return made
}

// Originals is what was changed outside the directories that bulkhead made, and not
// given back since: for each place the first change, whose Old is what was there before bulkhead.
func (v InBoot) Originals() []Change {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	return slices.Clone(v.state().originals)
}

// Lasting is, as Originals, what was changed of what outlives a boot: in this boot or in an earlier one.
func (v InBoot) Lasting() []Change {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	return slices.Clone(v.store.state.lasting)
}

// Scores is the oom_score_adj that processes had before bulkhead first changed it.
func (v InBoot) Scores() map[procfs.ID]int {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	scores := map[procfs.ID]int{}
	for _, c := range v.state().originals {
		if id, is := c.scored(); is {
			if n, err := strconv.Atoi(c.Old); err == nil {
				scores[id] = n
			}
		}
	}
	return scores
}

// Subtree is the controllers that bulkhead added to cgroup.subtree_control, outside the directories it
// made. Changes of that file hold lists: Old and New are names separated by spaces.
func (v InBoot) Subtree() map[cgroup.Dir][]string {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	enabled := map[cgroup.Dir][]string{}
	for _, c := range v.state().originals {
		if c.Kind != cgroup.KindControllers {
			continue
		}
		before := strings.Fields(c.Old)
		for _, name := range strings.Fields(c.New) {
			if !slices.Contains(before, name) {
				enabled[c.in()] = append(enabled[c.in()], name)
			}
		}
	}
	return enabled
}

// Changed says whether a value outside the directories that bulkhead made is another one than before
// bulkhead first wrote it.
func (v InBoot) Changed(t change.Target) bool {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	return slices.ContainsFunc(v.state().originals, func(c Change) bool { return c.Target == t })
}

// Homes says where released members go: by process, and by group for processes that
// were born inside. Both map on to hierarchy ID → path. The maps are the caller's own, but for those of a process: many
// share one, and nobody changes it.
func (v InBoot) Homes() (process map[procfs.ID]map[string]string, group map[string]map[string]string) {
	v.store.mu.Lock()
	defer v.store.mu.Unlock()
	b := v.state()
	return maps.Clone(b.process), b.groupHomes()
}
