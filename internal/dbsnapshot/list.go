package dbsnapshot

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/backuplock"
	"bulkhead/internal/linux/zfs"
)

// Set is a snapshot of an instance: one of each of its datasets.
type Set struct {
	Instance string    `json:"instance"`
	Name     string    `json:"name"`
	Created  time.Time `json:"created"`
	// Complete says that it was confirmed, and that none of its parts is missing.
	Complete bool   `json:"complete"`
	Trouble  string `json:"trouble,omitempty"` // why it is not
	// Unfinished says that its maker or its remover was killed.
	Unfinished bool `json:"unfinished"`
	// Lock is what was locked meanwhile; "" is nothing.
	Lock     string              `json:"lock"`
	HeldMS   int64               `json:"held_ms"`
	Position backuplock.Position `json:"position"`
	// Used is what only this snapshot holds, in bytes; Refers what it reaches.
	Used   int64 `json:"used"`
	Refers int64 `json:"refers"`
	// Clones are datasets that were cloned from it, and Holds how many holds of zfs hold keep it.
	Clones []string `json:"clones"`
	Holds  int64    `json:"holds"`
	Layout Layout   `json:"layout"`

	parts []zfs.Snapshot
	// nth orders those of a pool as they were made, whatever the clock was: the group of transactions (createtxg). at
	// is Created, and never before that of one made earlier there.
	nth int64
	at  time.Time
}

// String is how it is named: INSTANCE@NAME.
func (s Set) String() string { return s.Instance + "@" + s.Name }

// Parts are the names of its snapshots in ZFS.
func (s Set) Parts() []string {
	var names []string
	for _, p := range s.parts {
		names = append(names, p.Name)
	}
	return names
}

// Pool is the pool that they are in; "" where nothing says so.
func (s Set) Pool() string {
	if len(s.parts) == 0 {
		return ""
	}
	return s.parts[0].Pool()
}

// List gives the snapshots that were made here, by instance, the newest first. Of one pool that is the one made last,
// also where the clock was set back. Those of two pools are never one set: a pool may have come from another host.
func List(ctx context.Context, tools zfs.Tools) ([]Set, error) {
	all, err := tools.SnapshotsWith(ctx, propertyNames())
	if err != nil {
		return nil, err
	}
	return group(all), nil
}

// group makes sets of snapshots. One that another host sent here has properties that were received, and is none.
func group(all []zfs.Snapshot) []Set {
	type key struct{ pool, instance, name string }
	at, sets := map[key]int{}, []Set{}
	for _, s := range all {
		dataset, name, _ := strings.Cut(s.Name, "@")
		instance := own(s, propInstance)
		if instance == "" {
			continue
		}
		var l Layout
		if json.Unmarshal([]byte(own(s, propLayout)), &l) != nil ||
			!slices.ContainsFunc(l.Datasets, func(d Dataset) bool { return d.Name == dataset }) {
			l = Layout{}
		}
		k := key{s.Pool(), instance, name}
		i, known := at[k]
		if !known {
			i = len(sets)
			at[k], sets = i, append(sets, setOf(s, instance, name, l))
		}
		sets[i].parts = append(sets[i].parts, s)
		sets[i].Used += max(s.Used(), 0)
		sets[i].Refers += max(s.Referenced(), 0)
		sets[i].Clones = append(sets[i].Clones, s.Clones()...)
		sets[i].Holds += max(s.Number("userrefs"), 0)
	}
	order(sets)
	return sets
}

// order judges and sorts sets.
func order(sets []Set) {
	slices.SortStableFunc(sets, func(a, b Set) int {
		return cmp.Or(cmp.Compare(a.nth, b.nth), a.Created.Compare(b.Created))
	})
	latest := map[string]time.Time{} // by the pool
	for i := range sets {
		s := &sets[i]
		s.judge()
		if s.at = s.Created; s.at.Before(latest[s.Pool()]) {
			s.at = latest[s.Pool()]
		}
		latest[s.Pool()] = s.at
	}
	slices.SortStableFunc(sets, func(a, b Set) int {
		return cmp.Or(cmp.Compare(a.Instance, b.Instance), b.at.Compare(a.at), cmp.Compare(b.nth, a.nth))
	})
}

func setOf(s zfs.Snapshot, instance, name string, l Layout) Set {
	set := Set{Instance: instance, Name: name, Created: time.Unix(s.Created(), 0), Lock: own(s, propMode), Layout: l,
		Clones: []string{}, nth: max(s.Number("createtxg"), 0)}
	if set.Lock == noLock {
		set.Lock = ""
	}
	set.HeldMS, _ = strconv.ParseInt(own(s, propHeld), 10, 64)
	set.Position = backuplock.Position{Binlog: own(s, propBinlog), GTID: own(s, propGTID), LSN: own(s, propLSN),
		AtLeast: own(s, propAtLeast) == atLeast}
	if r := own(s, propReplica); r != "" {
		set.Position.Replica = strings.Split(r, ", ")
	}
	return set
}

// judge says whether a set is complete.
func (s *Set) judge() {
	missing := []string{}
	for _, d := range s.Layout.Datasets {
		if !slices.ContainsFunc(s.parts, func(p zfs.Snapshot) bool { return p.Name == d.Name+"@"+s.Name }) {
			missing = append(missing, d.Name)
		}
	}
	s.Unfinished = slices.ContainsFunc(s.parts, unfinished)
	switch {
	case s.Unfinished:
		s.Trouble = "whoever made or removed it was stopped halfway"
	case len(s.Layout.Datasets) == 0:
		s.Trouble = "its datasets have other names than when it was made"
	case len(missing) > 0:
		s.Trouble = "parts of it are missing: " + strings.Join(missing, ", ")
	}
	s.Complete = s.Trouble == ""
}
