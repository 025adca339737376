package dbsnapshot

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
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
// does one with clones or holds. Snapshots that the rule is not about are not counted, and those of each pool are
// counted apart: an instance that moved leaves the newest in its old pool, and a pool of another host that was imported
// here may have the same names.
func Retain(sets []Set, of func(instance string) Rule, now time.Time) []Verdict {
	verdicts := []Verdict{}
	type line struct{ pool, instance string }
	seen := map[line]int{} // complete ones, the newest first
	for _, s := range sets {
		r := of(s.Instance)
		if r.Instance != "" && s.Instance != r.Instance {
			continue
		}
		if match, _ := path.Match(r.Pattern, s.Name); r.Pattern != "" && !match {
			continue
		}
		if s.Complete {
			seen[line{s.Pool(), s.Instance}]++
		}
		verdicts = append(verdicts, r.judge(s, seen[line{s.Pool(), s.Instance}], now))
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

// Remove removes a snapshot, and nothing that depends on it: ZFS refuses that. It is marked before. Where ZFS refuses
// its first part, as somebody holds, clones or sends it meanwhile, the mark is taken back, and it is whole as before.
func Remove(ctx context.Context, tools zfs.Tools, s Set) error {
	if err := tools.Set(ctx, map[string]string{propState: stateRemoving}, s.Parts()...); err != nil {
		return err
	}
	err := destroy(ctx, tools, s.parts)
	if err == nil || !s.Complete || errors.Is(err, zfs.ErrTime) { // which may still happen
		return err
	}
	late, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer stop()
	first := s.parts[0]
	dataset, _, _ := strings.Cut(first.Name, "@")
	there, failed := tools.SnapshotsWith(late, []string{propState}, dataset)
	if failed == nil && slices.ContainsFunc(there, func(t zfs.Snapshot) bool { return t.Name == first.Name }) {
		failed = tools.Set(late, map[string]string{propState: stateComplete}, s.Parts()...)
	}
	return errors.Join(err, failed)
}
