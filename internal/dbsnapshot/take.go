package dbsnapshot

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"bulkhead/internal/api"
	"bulkhead/internal/backuplock"
	"bulkhead/internal/linux/zfs"
)

// Properties of snapshots.
const (
	prefix       = "bulkhead:"
	propState    = prefix + "state"
	propInstance = prefix + "instance"
	propLayout   = prefix + "layout"
	propMode     = prefix + "lock" // statements, or noLock
	propBinlog   = prefix + "binlog"
	propGTID     = prefix + "gtid"
	propReplica  = prefix + "replica"
	propLSN      = prefix + "lsn"
	propAtLeast  = prefix + "position" // atLeast or exact
	propHeld     = prefix + "held-ms"
)

// States of a snapshot.
const (
	stateTaking   = "taking"
	stateComplete = "complete"
	stateRemoving = "removing"
)

const noLock, exact, atLeast = "none", "exact", "at-least"

// Taken is a snapshot that was just made.
type Taken struct {
	Name     string              `json:"name"`
	Layout   Layout              `json:"layout"`
	Lock     string              `json:"lock"` // "" is none
	Position backuplock.Position `json:"position"`
	// Held is how long others may have waited, in seconds; Took how long ZFS took of it.
	Held float64 `json:"held_seconds"`
	Took float64 `json:"zfs_seconds"`
	// Replaced says that a snapshot of this name was there that nobody had confirmed.
	Replaced bool     `json:"replaced,omitempty"`
	Notes    []string `json:"notes"`
}

// name is what a snapshot may be called here: ZFS takes more.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$`)

// CheckName says what is wrong with the name of a snapshot.
func CheckName(text string) error {
	if !name.MatchString(text) {
		return fmt.Errorf("%q is no name: letters, digits and _.:- after a letter or a digit, 100 of them at most",
			text)
	}
	return nil
}

// Server is a session that locks; *backuplock.Session is one.
type Server interface {
	Take(ctx context.Context) (backuplock.Position, error)
	Left() time.Duration
	Release(ctx context.Context) (time.Duration, error)
}

// cleanup is how long may be spent on putting back what failed.
const cleanup = 20 * time.Second

// Take makes one snapshot of all datasets of a layout, while s, if not nil, locks the server by the statements named.
// It is complete only if the lock was held until ZFS had answered; else there is none, or one that is marked and that
// the next call of that name replaces.
func Take(ctx context.Context, tools zfs.Tools, s Server, lock string, l Layout, snapshot string) (*Taken, error) {
	t := &Taken{Name: snapshot, Layout: l, Lock: lock, Notes: []string{}}
	replaced, err := clear(ctx, tools, l, snapshot)
	if err != nil {
		return nil, err
	}
	t.Replaced = replaced
	properties, err := l.properties(lock)
	if err != nil {
		return nil, err
	}
	if s != nil {
		if t.Position, err = s.Take(ctx); err != nil {
			return nil, err
		}
		t.Notes = append(t.Notes, position(properties, t.Position)...)
		if lock != "" {
			tools.Limit = min(max(s.Left(), time.Millisecond), zfs.Limit)
		}
	}
	begun := time.Now()
	failed := tools.Snapshot(ctx, properties, l.names(snapshot)...)
	t.Took = time.Since(begun).Seconds()
	if s != nil {
		held, lost := s.Release(context.WithoutCancel(ctx))
		t.Held, failed = held.Seconds(), errors.Join(failed, lost)
	}
	// The lock is gone: nothing waits for what follows.
	late, stop := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer stop()
	tools.Limit = zfs.Limit
	if failed == nil {
		failed = tools.Set(late, map[string]string{propState: stateComplete,
			propHeld: strconv.FormatInt(int64(t.Held*1000), 10)}, l.names(snapshot)...)
	}
	if failed == nil {
		return t, nil
	}
	return nil, undo(late, tools, l, snapshot, failed)
}

// properties are those that a snapshot is made with.
func (l Layout) properties(lock string) (map[string]string, error) {
	layout, err := l.text()
	p := map[string]string{propState: stateTaking, propInstance: l.Instance, propLayout: layout, propMode: noLock}
	if lock != "" {
		p[propMode] = lock
	}
	return p, err
}

// position adds where the server stands, and gives notes on what does not fit.
func position(properties map[string]string, p backuplock.Position) (notes []string) {
	properties[propAtLeast] = exact
	if p.AtLeast {
		properties[propAtLeast] = atLeast
	}
	for key, value := range map[string]string{propBinlog: p.Binlog, propGTID: p.GTID, propLSN: p.LSN,
		propReplica: strings.Join(p.Replica, ", ")} {
		switch {
		case len(value) > maxProperty:
			notes = append(notes, fmt.Sprintf("%s has %d bytes, more than a property of ZFS holds: it is not "+
				"kept", strings.TrimPrefix(key, prefix), len(value)))
		case strings.ContainsFunc(value, unicode.IsControl): // it would begin a line of what zfs get prints
			notes = append(notes, strings.TrimPrefix(key, prefix)+" has control characters: it is not kept")
		case value != "":
			properties[key] = value
		}
	}
	return notes
}

// clear removes what a killed call left under a name, and refuses what is there otherwise.
func clear(ctx context.Context, tools zfs.Tools, l Layout, snapshot string) (replaced bool, err error) {
	there, err := present(ctx, tools, l, snapshot)
	if err != nil || len(there) == 0 {
		return false, err
	}
	for _, d := range there {
		if !unfinished(d) || own(d, propInstance) != l.Instance {
			return false, api.Errorf(api.CodeFailed, "take another name; `bulkhead zfs list` and `zfs list -t "+
				"snapshot` show those that are there", "snapshot %s is there already", d.Name)
		}
	}
	return true, destroy(ctx, tools, there)
}

// present are the snapshots of a name that are there. Other pools are not asked: one of them may hang.
func present(ctx context.Context, tools zfs.Tools, l Layout, snapshot string) ([]zfs.Snapshot, error) {
	var datasets []string
	for _, d := range l.Datasets {
		datasets = append(datasets, d.Name)
	}
	all, err := tools.SnapshotsWith(ctx, []string{propState, propInstance}, datasets...)
	names := l.names(snapshot)
	return slices.DeleteFunc(all, func(s zfs.Snapshot) bool { return !slices.Contains(names, s.Name) }), err
}

// own is a property that was set on a snapshot itself, by this host.
func own(s zfs.Snapshot, name string) string {
	if p := s.Properties[name]; p.Source == "local" {
		return p.Value
	}
	return ""
}

// unfinished says that the maker or the remover of a snapshot was killed.
func unfinished(s zfs.Snapshot) bool {
	state := own(s, propState)
	return state == stateTaking || state == stateRemoving
}

// undo removes a snapshot that was not confirmed. A program that was given up may still make it: that is why it is
// marked from the first.
func undo(ctx context.Context, tools zfs.Tools, l Layout, snapshot string, cause error) error {
	there, err := present(ctx, tools, l, snapshot)
	there = slices.DeleteFunc(there, func(s zfs.Snapshot) bool {
		return own(s, propInstance) != l.Instance || own(s, propState) == ""
	})
	if err == nil {
		err = destroy(ctx, tools, there)
	}
	hint := "nothing was kept of it"
	if err != nil {
		hint = "the same command again, or `bulkhead zfs prune`, removes what is left"
	}
	if errors.Is(cause, backuplock.ErrLost) || errors.Is(cause, zfs.ErrTime) {
		hint += "; --hold gives it more time, --crash-consistent takes no lock"
	}
	return api.Errorf(api.CodeFailed, hint, "take snapshot %s of %s: %w", snapshot, l.Instance, errors.Join(cause, err))
}

// destroy removes snapshots one by one: one that was removed before stays removed.
func destroy(ctx context.Context, tools zfs.Tools, list []zfs.Snapshot) error {
	for _, s := range list {
		if err := tools.Destroy(ctx, s.Name); err != nil {
			return err
		}
	}
	return nil
}

// propertyNames are what List asks for.
func propertyNames() []string {
	return []string{propBinlog, propGTID, propHeld, propInstance, propLayout, propMode, propLSN, propAtLeast,
		propReplica, propState, "used", "referenced", "creation", "createtxg", "clones", "userrefs"}
}
