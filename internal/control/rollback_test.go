package control

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/journal"
	"bulkhead/internal/policy"
	"bulkhead/internal/revisions"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// newBook is a controller with a state directory that it holds the lock of, and without a host.
func newBook(t *testing.T) *transaction.Controller {
	t.Helper()
	store, err := journal.Open(t.TempDir(), journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := &transaction.Controller{Store: store, Log: slog.New(slog.DiscardHandler), LockWait: time.Millisecond}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Lock(t.Context(), "test", "test"); err != nil {
		t.Fatal(err)
	}
	return c
}

func historyOf(c *transaction.Controller, t *testing.T) []journal.Entry {
	t.Helper()
	entries, err := c.Store.History()
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// keepRevision writes sources down as if their revision had been in force.
func keepRevision(c *transaction.Controller, t *testing.T, revision int) {
	t.Helper()
	if err := c.Store.Save(journal.VersionName(revision), []policy.Source{{Path: "test.yaml"}}); err != nil {
		t.Fatal(err)
	}
}

// did is an entry of a history, in the order verb, revision, outcome, text.
func did(verb string, revision int, outcome, text string) journal.Entry {
	return journal.Entry{Verb: verb, Revision: revision, Outcome: outcome, Text: text, By: "test", Time: time.Now()}
}

// cutOff is the text of an entry whose change was cut off and undone.
const cutOff = journal.CutOff + "undone"

// Who was told that `rollback` undoes an interrupted change and comes too late must keep the policy that is sound.
func TestRollbackThatComesTooLate(t *testing.T) {
	done := []journal.Entry{did("apply", 1, journal.Committed, ""), did("apply", 2, journal.Committed, "")}
	for name, c := range map[string]struct {
		then []journal.Entry
		want string // of the text, or of the error with its code; "" goes one revision back
		code api.Code
	}{
		"nothing": {nil, "", 0},
		"an interrupted apply": {[]journal.Entry{did("apply", 3, journal.Undone, cutOff)},
			"already undone: nothing to do; the apply of revision 3, which was interrupted, ", 0},
		"and who undid it": {[]journal.Entry{did("apply", 3, journal.Undone, cutOff),
			did("rollback", 0, journal.Committed, "")}, "already undone: nothing to do; ", 0},
		"and the agent's repair": {[]journal.Entry{did("apply", 3, journal.Undone, cutOff),
			did("look", 2, journal.Committed, "")}, "already undone: nothing to do; ", 0},
		"and other changes": {[]journal.Entry{did("apply", 3, journal.Undone, cutOff),
			did("set", 2, journal.Committed, ""), did("thaw", 0, journal.Committed, "")},
			"; revision 2 is in force; `bulkhead rollback --to 1` goes back to the one before", 0},
		"an interrupted set": {[]journal.Entry{did("set", 2, journal.Undone, cutOff)},
			"the set, which was interrupted", 0},
		"an interrupted repair": {[]journal.Entry{did("look", 2, journal.Undone, cutOff)},
			"the look, which was interrupted", 0},
		"a failed apply": {[]journal.Entry{did("apply", 3, journal.Undone, "no space left")},
			"the apply of revision 3, which failed, was undone", 0},
		"a failed set":      {[]journal.Entry{did("set", 2, journal.Undone, "no space left")}, "", 0},
		"a failed rollback": {[]journal.Entry{did("rollback", 3, journal.Undone, "no space left")}, "", 0},
		"a failed repair":   {[]journal.Entry{did("look", 2, journal.Undone, "no space left")}, "", 0},
		"the same policy again": {[]journal.Entry{did("apply", 3, journal.Undone, cutOff),
			did("apply", 2, journal.Committed, "")}, "", 0},
		"an interruption not undone": {[]journal.Entry{did("apply", 3, journal.Failed,
			journal.CutOff+"could not undo: a thing")}, "could not undo: a thing", api.CodeFailed},
		"a release": {[]journal.Entry{did("release", 0, journal.Committed, "")},
			"the last change was a release, by test", api.CodeUsage},
		"a set and the agent's repair": {[]journal.Entry{did("set", 2, journal.Committed, ""),
			did("look", 2, journal.Committed, "")}, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBook(t)
			keepRevision(b, t, 1)
			keepRevision(b, t, 2)
			text, err := revisions.UndoneAlready(b.Store, &state.Documents{Applied: &state.Applied{Revision: 2}},
				slices.Concat(done, c.then))
			said := text
			if err != nil {
				said = err.Error()
			}
			if api.CodeOf(err) != c.code || !strings.Contains(said, c.want) || c.want == "" && said != "" {
				t.Errorf("code %d, %q", api.CodeOf(err), said)
			}
		})
	}
	b := newBook(t)
	text, err := revisions.UndoneAlready(b.Store, &state.Documents{},
		[]journal.Entry{did("apply", 1, journal.Undone, cutOff)})
	if err != nil || !strings.HasSuffix(text, "; no policy is in force") {
		t.Errorf("the first apply of all: %q, %v", text, err)
	}
}

// A revision whose apply was undone keeps its number, and nobody can go back to it.
func TestRevisionsThatNeverWere(t *testing.T) {
	b := newBook(t)
	s := &state.Documents{Applied: &state.Applied{Revision: 5}}
	entries := []journal.Entry{
		did("apply", 1, journal.Committed, ""), did("apply", 2, journal.Committed, ""),
		did("apply", 3, journal.Undone, cutOff),
		did("apply", 4, journal.Undone, "no space left"), did("apply", 5, journal.Committed, ""),
		did("apply", 6, journal.Undone, cutOff),
	}
	for _, e := range entries {
		if _, err := b.Store.Record(e); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []int{1, 2, 4, 5} { // 4 as an older version kept it
		keepRevision(b, t, n)
	}
	if n, err := revisions.Next(b.Store, s, false); err != nil || n != 7 {
		t.Errorf("the next one is %d, %v", n, err)
	}
	if n, err := revisions.Next(b.Store, s, true); err != nil || n != 5 {
		t.Errorf("the same again is %d, %v", n, err)
	}
	keepRevision(b, t, 7)
	if n, err := revisions.Next(b.Store, &state.Documents{}, false); err != nil || n != 8 {
		t.Errorf("with the applied policy lost and one more kept: %d, %v", n, err)
	}
	for n, want := range map[int]bool{1: true, 2: true, 3: false, 4: false, 5: true, 6: false, 99: false} {
		if got, err := revisions.InForce(b.Store, entries, n); err != nil || got != want {
			t.Errorf("revision %d was in force: %t, %v", n, got, err)
		}
	}
	for _, c := range []struct{ applied, like, want int }{{5, 0, 2}, {5, 2, 1}, {2, 0, 1}, {1, 0, 0}} {
		if got, err := revisions.Before(b.Store,
			&state.Documents{Applied: &state.Applied{Revision: c.applied, Like: c.like}},
			entries); err != nil || got != c.want {
			t.Errorf("before %+v: %d, %v", c, got, err)
		}
	}
	_, err := revisions.Sources(b.Store, s, entries, 99)
	if got, want := api.HintOf(err), "the revisions that were in force are 1 to 2, 5; "; !strings.HasPrefix(got, want) {
		t.Errorf("hint %q", got)
	}
}

// A change of documents alone is in the history too.
func TestCommitWithNothingToDoOnTheHost(t *testing.T) {
	b := newBook(t)
	r := api.Request{Verb: "apply", By: "ann", Reason: "a comment"}
	docs := map[string]any{state.DocApplied: state.Applied{Revision: 7}}
	reply := &transaction.Outcome{Reply: api.Reply{Revision: 7}}
	if err := b.Commit(r, reply, docs, func() error { return nil }); err != nil || !reply.Recorded {
		t.Fatalf("%+v, %v", reply, err)
	}
	entries := historyOf(b, t)
	if len(entries) != 1 || entries[0].Verb != "apply" || entries[0].Revision != 7 ||
		entries[0].Reason != "a comment" || entries[0].By != "ann" || entries[0].Outcome != journal.Committed {
		t.Errorf("history %+v", entries)
	}
	var a state.Applied
	if _, err := b.Store.Load(state.DocApplied, &a); err != nil || a.Revision != 7 {
		t.Errorf("applied %+v, %v", a, err)
	}
	reply = &transaction.Outcome{Reply: api.Reply{Revision: 7}}
	if err := b.Commit(r, reply, docs, func() error { return nil }); err != nil || reply.Recorded ||
		len(historyOf(b, t)) != 1 {
		t.Errorf("the same again: %+v, %v, history %+v", reply, err, historyOf(b, t))
	}
	reply = &transaction.Outcome{Reply: api.Reply{Revision: 8}}
	err := b.Commit(r, reply, docs, func() error { reply.Ran = true; return nil })
	if n := len(historyOf(b, t)); err != nil || n != 1 || reply.Recorded {
		t.Errorf("a plan that wrote its own entry has %d, recorded %t, %v", n, reply.Recorded, err)
	}
	if err := b.Commit(r, &transaction.Outcome{}, docs, func() error { return errors.New("refused") }); err == nil ||
		len(historyOf(b, t)) != 1 {
		t.Errorf("a change that was refused: %v, history %+v", err, historyOf(b, t))
	}
}

// Killed at any point of a change, the next one settles it, or drops it and says so in the history.
func TestFinishAfterACrash(t *testing.T) {
	for name, c := range map[string]struct {
		after      []journal.Entry // what the history got after the change began
		unfinished bool
		applied    int
		outcome    string // of the last entry
	}{
		"before the first step": {nil, true, 0, journal.Undone},
		"after the last one":    {[]journal.Entry{did("apply", 3, journal.Committed, "")}, false, 3, journal.Committed},
		"after its own undoing": {[]journal.Entry{did("apply", 3, journal.Undone, "no space left")}, false, 0,
			journal.Undone},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBook(t)
			doc, err := json.Marshal(state.Applied{Revision: 3})
			if err != nil {
				t.Fatal(err)
			}
			n := state.Next{Docs: map[string]json.RawMessage{state.DocApplied: doc},
				Entry: journal.Entry{Time: time.Now(), Verb: "apply", By: "ann", Revision: 3}}
			if err := b.Store.Save(state.DocNext, n); err != nil {
				t.Fatal(err)
			}
			for _, e := range c.after {
				if _, err := b.Store.Record(e); err != nil {
					t.Fatal(err)
				}
			}
			text, err := transaction.Unfinished(b)
			if err != nil || (text != "") != c.unfinished || c.unfinished &&
				!strings.HasPrefix(text, "apply begun at ") {
				t.Errorf("unfinished: %q, %v", text, err)
			}
			reply := &transaction.Outcome{}
			if err := transaction.Finish(b, false, reply); err != nil || (reply.Recovered != "") != c.unfinished {
				t.Errorf("%q, %v", reply.Recovered, err)
			}
			var a state.Applied
			if _, err := b.Store.Load(state.DocApplied, &a); err != nil || a.Revision != c.applied {
				t.Errorf("applied %+v, %v", a, err)
			}
			entries := historyOf(b, t)
			last := entries[len(entries)-1]
			if last.Outcome != c.outcome || last.Revision != 3 || c.unfinished != last.WasCutOff() {
				t.Errorf("history ends with %+v", last)
			}
			if text, err := transaction.Unfinished(b); err != nil || text != "" {
				t.Errorf("still unfinished: %q, %v", text, err)
			}
		})
	}
}

// Status calls a change interrupted only when nobody is about it.
func TestChangeUnderWay(t *testing.T) {
	b := newBook(t)
	if err := b.Store.Save(state.DocNext, state.Next{Docs: map[string]json.RawMessage{state.DocApplied: nil},
		Entry: journal.Entry{Time: time.Now(), Verb: "apply"}}); err != nil {
		t.Fatal(err)
	}
	begin := func(verb, who string) (end func()) {
		t.Helper()
		other, err := journal.Open(b.Store.Dir(), journal.Options{})
		if err != nil {
			t.Fatal(err)
		}
		lock, err := other.Lock(verb, who)
		if err != nil {
			t.Fatal(err)
		}
		return func() { lock.Release(); _ = other.Close() }
	}
	if err := b.Close(); err != nil { // lets go of the lock
		t.Fatal(err)
	}
	for _, c := range []struct {
		verb, who string
		want      string
	}{{"apply", "ann", "apply by ann since "}, {"set", "", "set since "}, {"look", "agent", ""}} {
		end := begin(c.verb, c.who)
		pending, underWay := inspect.Changing(b)
		if pending != "" || !strings.HasPrefix(underWay, c.want) || c.want == "" && underWay != "" {
			t.Errorf("%s: interrupted %q, under way %q", c.verb, pending, underWay)
		}
		end()
	}
	pending, underWay := inspect.Changing(b)
	if !strings.HasPrefix(pending, "apply begun at ") || underWay != "" {
		t.Errorf("nobody holds the lock: interrupted %q, under way %q", pending, underWay)
	}
}

// What makes no sense is turned away before anything is looked at, for a program at the socket too.
func TestRequestsThatMakeNoSense(t *testing.T) {
	b := newBook(t)
	for name, r := range map[string]api.Request{
		"no verb":                {},
		"an unknown verb":        {Verb: "flood"},
		"force without a reason": {Verb: "apply", Sources: []policy.Source{{}}, Force: true, Reason: " "},
		"apply nothing":          {Verb: "apply"},
		"apply to a revision":    {Verb: "apply", Sources: []policy.Source{{}}, To: 1},
		"set nothing":            {Verb: "set"},
		"set for less than none": {Verb: "set", Assign: []string{"g:tasks=1"}, For: -time.Second},
		"unset nothing":          {Verb: "unset", Assign: []string{}},
		"freeze nobody":          {Verb: "freeze", Groups: []string{}, For: time.Second},
		"freeze a nameless one":  {Verb: "freeze", Groups: []string{""}, For: time.Second},
		"freeze without an end":  {Verb: "freeze", Groups: []string{"g"}},
		"freeze backwards":       {Verb: "freeze", Groups: []string{"g"}, For: -time.Second},
		"thaw nobody":            {Verb: "thaw"},
		"release nothing":        {Verb: "release"},
		"release both":           {Verb: "release", All: true, Groups: []string{"g"}},
		"release a nameless one": {Verb: "release", Groups: []string{""}},
		"move nobody":            {Verb: "move", Group: "g"},
		"move nowhere":           {Verb: "move", PIDs: []int{1}},
		"move no process":        {Verb: "move", Group: "g", PIDs: []int{-1}},
		"move for less":          {Verb: "move", Group: "g", PIDs: []int{1}, For: -1},
		"move nobody back":       {Verb: "move-back", PIDs: []int{}},
		"go back to less":        {Verb: "rollback", To: -1},
	} {
		for _, dry := range []bool{false, true} {
			r.DryRun = dry
			if _, err := Do(context.Background(), b, r); api.CodeOf(err) != api.CodeUsage || name != "no verb" &&
				name != "an unknown verb" && api.HintOf(err) == "" {
				t.Errorf("%s: code %d, %v, hint %q", name, api.CodeOf(err), err, api.HintOf(err))
			}
		}
	}
}

func TestReleasedGroupsAreLeftAlone(t *testing.T) {
	s := &state.Documents{Released: map[string]bool{"a": true, "b": false}}
	for group, want := range map[string]api.Code{"a": api.CodeFailed, "a/db": api.CodeFailed, "b": 0, "ab": 0} {
		if err := transaction.RefuseReleased(s, group); api.CodeOf(err) != want || want != 0 && api.HintOf(err) == "" {
			t.Errorf("%s: %v", group, err)
		}
	}
	s.Released = map[string]bool{"": true}
	if err := transaction.RefuseReleased(s, "b"); api.CodeOf(err) != api.CodeFailed {
		t.Errorf("with everything released: %v", err)
	}
}
