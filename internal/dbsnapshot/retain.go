package dbsnapshot

import (
	"context"
	"fmt"
	"path"
	"time"

	"bulkhead/internal/linux/zfs"
)

// Rule says which snapshots go: those behind the newest Keep of their instance, if it is not 0, that are also older
// than Older, if it is not 0. With neither only those go that somebody was stopped halfway with.
type Rule struct {
	Instance string // "" is each
	Pattern  string // of names, as path.Match has it; "" is each
	Keep     int
	Older    time.Duration
}

// Verdict is what becomes of a snapshot.
type Verdict struct {
	Set    Set    `json:"snapshot"`
	Remove bool   `json:"remove"`
	Why    string `json:"why"`
}

// Retain decides by the rule that there is for each instance. The newest complete snapshot of an instance stays, and so
// does one with clones or holds. Snapshots that the rule is not about are not counted.
func Retain(sets []Set, of func(instance string) Rule, now time.Time) []Verdict {
	verdicts := []Verdict{}
	seen := map[string]int{} // complete ones of an instance, the newest first
	for _, s := range sets {
		r := of(s.Instance)
		if r.Instance != "" && s.Instance != r.Instance {
			continue
		}
		if match, _ := path.Match(r.Pattern, s.Name); r.Pattern != "" && !match {
			continue
		}
		if s.Complete {
			seen[s.Instance]++
		}
		verdicts = append(verdicts, r.judge(s, seen[s.Instance], now))
	}
	return verdicts
}

// judge decides of one, which is number n of its instance's complete ones from the newest.
func (r Rule) judge(s Set, n int, now time.Time) Verdict {
	v := Verdict{Set: s}
	switch {
	case len(s.Clones) > 0:
		v.Why = fmt.Sprintf("it has clones: %v", s.Clones)
	case s.Holds > 0:
		v.Why = "zfs hold keeps it"
	case s.Unfinished:
		v.Remove, v.Why = true, s.Trouble
	case s.Complete && n == 1:
		v.Why = "it is the newest"
	case r.Keep == 0 && r.Older == 0:
		v.Why = "no rule was given"
	case r.Keep > 0 && n <= r.Keep && s.Complete:
		v.Why = fmt.Sprintf("it is among the newest %d", r.Keep)
	case r.Older > 0 && now.Sub(s.Created) <= r.Older:
		v.Why = "it is not old enough"
	case !s.Complete:
		v.Why = s.Trouble + "; `zfs destroy` removes it"
	default:
		v.Remove, v.Why = true, fmt.Sprintf("number %d from the newest", n)
	}
	return v
}

// Remove removes a snapshot, and nothing that depends on it: ZFS refuses that. It is marked before.
func Remove(ctx context.Context, tools zfs.Tools, s Set) error {
	if err := tools.Set(ctx, map[string]string{propState: stateRemoving}, s.Parts()...); err != nil {
		return err
	}
	return destroy(ctx, tools, s.parts)
}
