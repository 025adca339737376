package copies

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/backuplock"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/dbsnapshot"
	"bulkhead/internal/engine"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/policy/retention"
	"bulkhead/internal/transaction"
	"bulkhead/internal/zfsclone"
)

func TestAge(t *testing.T) {
	for text, want := range map[string]time.Duration{"36h": 36 * time.Hour, "30d": 720 * time.Hour, "0d": 0, "-1d": 0,
		"1.5d": 0, "0s": 0, "-3h": 0, "d": 0, "soon": 0, "99999999999d": 0} {
		var a age
		if err := a.Set(text); time.Duration(a) != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v", text, time.Duration(a), err)
		}
	}
	for d, want := range map[time.Duration]string{-time.Second: "0 s", 59 * time.Second: "59 s",
		time.Hour - 1: "59 min", 25*time.Hour + time.Minute: "25 h 1 min", 50 * time.Hour: "2 d 2 h"} {
		if got := ago(d); got != want {
			t.Errorf("%v: %s", d, got)
		}
	}
}

// The socket is the server's word: it changes nothing else of the login.
func TestLoginOf(t *testing.T) {
	l, err := loginOf(engine.Instance{Engine: engine.MySQL, Socket: "/run/a b#&socket=/x.sock"}, nil)
	if err != nil || l.Socket != "/run/a b#&socket=/x.sock" || l.User != "root" || l.Password != "" {
		t.Errorf("%+v, %v", l, err)
	}
	for _, inst := range []engine.Instance{{Engine: engine.MySQL}, {Engine: engine.PostgreSQL, Socket: "/run/s"}} {
		if l, err := loginOf(inst, nil); l != nil || err != nil {
			t.Errorf("%+v: %+v, %v", inst, l, err)
		}
	}
}

// What others chose begins no line and steers no terminal, and a snapshot that is not complete is named so.
func TestList(t *testing.T) {
	var out bytes.Buffer
	s := Session{Out: render.Printable(&out, 0)}
	s.printList(listing{})
	s.printList(listing{Snapshots: []dbsnapshot.Set{
		{Instance: "mysql3306", Name: "one", Complete: true, Lock: "x\nDONE\x1b[2J", HeldMS: 12, Used: 1 << 20,
			Position: backuplock.Position{GTID: "g\nDONE"}},
		{Instance: "mysql3306", Name: "two", Trouble: "parts of it are missing: tank/log"}}})
	text := out.String()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "DONE") || strings.Contains(line, "\x1b") {
			t.Errorf("it prints %q", line)
		}
	}
	for _, want := range []string{"There is no snapshot.", "mysql3306@one", "12 ms", "NOT COMPLETE: parts of it"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// A copy whose server does not run is shown with the command that starts it, and one that is not whole with what ends
// it.
func TestPrintCopies(t *testing.T) {
	var out bytes.Buffer
	s := Session{Out: render.Printable(&out, 0)}
	s.printCopies(nil)
	if out.Len() > 0 {
		t.Errorf("of no copy it prints %q", out.String())
	}
	s.printCopies([]copyState{{Name: "dev1", Of: "mysql3306@s", Group: "dev1", Port: 13306, Phase: zfsclone.Ready},
		{Name: "dev2", Phase: zfsclone.Ready, Running: true}, {Name: "dev3", Phase: zfsclone.Making},
		{Name: "dev4", Phase: zfsclone.Dropping}, {Name: "dev5", Trouble: "it cannot\nbe read"}})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{"SERVER", "does not run: `bulkhead zfs start dev1`", "runs",
		"`bulkhead zfs refresh dev3` makes it anew", "`bulkhead zfs drop dev4` ends that", "not known: it cannot"} {
		if len(lines) != 6 || !strings.Contains(lines[i], want) {
			t.Fatalf("line %d has no %q:\n%s", i, want, out.String())
		}
	}
}

// No flag of a verb has the name of one that every verb has: `bulkhead --policy FILE zfs prune` would mean another
// thing.
func TestFlagsOfEveryVerb(t *testing.T) {
	for _, c := range (Session{}).Commands() {
		for _, name := range []string{"policy", "state", "socket", "json"} {
			if c.Flags().Lookup(name) != nil {
				t.Errorf("%s has a --%s of its own", c.Name(), name)
			}
		}
	}
}

// A snapshot is named once: where two pools have it, neither is taken for the other.
func TestNamed(t *testing.T) {
	a, b := dbsnapshot.Set{Instance: "mysql3306", Name: "a"}, dbsnapshot.Set{Instance: "mysql3306", Name: "b"}
	if got, err := named([]dbsnapshot.Set{a, b}, "mysql3306@b"); err != nil || got.Name != "b" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := named([]dbsnapshot.Set{a, b}, "mysql3306@c"); err == nil {
		t.Error("one that is not there")
	}
	if _, err := named([]dbsnapshot.Set{a, b, b}, "mysql3306@b"); api.CodeOf(err) != api.CodeRefused {
		t.Errorf("two of a name: %v", err)
	}
}

// Snapshots go by the rule of their instance in the policy; what was asked for bounds that, and without a rule none
// goes.
func TestRuled(t *testing.T) {
	rules := retention.Rules{{Instance: "mysql3306", Keep: 7}, {Instance: "pg5432", Older: time.Hour}}
	of := ruled(rules, dbsnapshot.Rule{Instance: "mysql3306", Pattern: "nightly-*"})
	for instance, want := range map[string]dbsnapshot.Rule{
		"mysql3306": {Instance: "mysql3306", Pattern: "nightly-*", Keep: 7},
		"pg5432":    {Instance: "mysql3306", Pattern: "nightly-*", Older: time.Hour}, // which is not about pg5432
		"mysql3307": {Instance: "mysql3306", Pattern: "nightly-*"},
	} {
		if got := of(instance); got != want {
			t.Errorf("%s: %+v", instance, got)
		}
	}
}

// Two do not change snapshots at a time: the second one waits, and is told by whom it waited in vain.
func TestWhileAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state") // which nothing made yet
		w := &work{Session: Session{State: &dir, Who: func() string { return "ann" }, Err: io.Discard},
			Controller: &transaction.Controller{}}
		failed := errors.New("failed")
		err := w.whileAlone(t.Context(), "first", func() error {
			begun := time.Now()
			var locked *statedir.LockedError
			err := w.whileAlone(t.Context(), "second", func() error { t.Error("both at once"); return nil })
			if !errors.As(err, &locked) || time.Since(begun) < lockWait {
				t.Errorf("after %v: %v", time.Since(begun), err)
			}
			ctx, stop := context.WithCancel(t.Context())
			stop()
			if err := w.whileAlone(ctx, "third", func() error { return nil }); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
			return failed
		})
		if !errors.Is(err, failed) {
			t.Error(err)
		}
		if err := w.whileAlone(t.Context(), "after", func() error { return nil }); err != nil {
			t.Error(err)
		}
	})
}
