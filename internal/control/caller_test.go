package control

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/linux/procfs"
)

// by gives a process to a user, with these user ids as /proc/PID/status has them: real, effective, saved, filesystem.
func (m *machine) by(id procfs.ID, uids string) procfs.ID {
	m.t.Helper()
	file := filepath.Join(m.proc, strconv.Itoa(id.PID), "status")
	text, err := os.ReadFile(file)
	m.must(err)
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "Uid:") {
			lines[i] = "Uid:\t" + strings.Join(strings.Fields(uids), "\t")
		}
	}
	m.must(os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644))
	return id
}

const shopOwner = 54321

// shop is a caller who owns one of three groups.
func shop(groups ...int) *api.Caller {
	return &api.Caller{Identity: procfs.Identity{UID: shopOwner, Groups: groups, Sole: true}}
}

const owned = `groups:
  shop:
    match: [{exe: shopd}]
    cpu: {limit: 1}
    tasks: 100
    memory: {max: 1GiB}
    owner:
      user: 54321
      may: [run, move, set, freeze]
      bounds: {cpu.limit: 0.5..2, memory.max: 256MiB..8GiB, tasks: ..200}
  team: {match: [{exe: teamd}], cpu: {limit: 1}, tasks: 100, owner: {unix_group: 54330, may: [set]}}
  strict: {match: [{exe: strictd}], cpu: {limit: 1}}
`

// What an owner may and may not do, by the policy in force.
func TestOwnersAsk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		q     api.Request
		by    *api.Caller
		wrong string // in the error; "" is done
	}{
		{"within bounds", api.Request{Verb: "set", Assign: []string{"shop:cpu.limit=2"}}, shop(), ""},
		{"out of bounds", api.Request{Verb: "set", Assign: []string{"shop:cpu.limit=2.1"}}, shop(),
			"shop:cpu.limit=2.1 is out of bounds"},
		{"below", api.Request{Verb: "set", Assign: []string{"shop:cpu.limit=0.4"}}, shop(), "out of bounds"},
		{"no limit at all", api.Request{Verb: "set", Assign: []string{"shop:cpu.limit=max"}}, shop(), "out of bounds"},
		{"half of it", api.Request{Verb: "set", Assign: []string{"shop:cpu.limit=1.5", "shop:tasks=201"}}, shop(),
			"out of bounds"},
		{"a percentage within", api.Request{Verb: "set", Assign: []string{"shop:memory.max=10%"}}, shop(), ""},
		{"a percentage beyond", api.Request{Verb: "set", Assign: []string{"shop:memory.max=90%"}}, shop(),
			"out of bounds"},
		{"a limit without bounds", api.Request{Verb: "set", Assign: []string{"shop:cpu.weight=10000"}}, shop(),
			"may not set cpu.weight"},
		{"another's", api.Request{Verb: "set", Assign: []string{"strict:cpu.limit=1"}}, shop(),
			`may not set in group "strict"`},
		{"and another's", api.Request{Verb: "set", Assign: []string{"shop:cpu.limit=1", "team:cpu.limit=1"}}, shop(),
			`may not set in group "team"`},
		{"by a Unix group", api.Request{Verb: "set", Assign: []string{"team:cpu.limit=4"}}, shop(54330), ""},
		{"what it may not", api.Request{Verb: "freeze", Groups: []string{"team"}, For: time.Minute}, shop(54330),
			`may not freeze in group "team"`},
		{"forced", api.Request{Verb: "set", Assign: []string{"shop:cpu.limit=1"}, Force: true, Reason: "hurry"}, shop(),
			"only root may use --force"},
		{"on trial", api.Request{Verb: "set", Assign: []string{"shop:cpu.limit=1"}, ConfirmWithin: time.Minute}, shop(),
			"only root may use"},
		{"everything", api.Request{Verb: "release", All: true}, shop(), "only root may release"},
		{"a policy", api.Request{Verb: "apply"}, shop(), "say which policy"},
		{"its group", api.Request{Verb: "release", Groups: []string{"shop"}}, shop(), "only root may release"},
		{"back", api.Request{Verb: "rollback"}, shop(), "only root may rollback"},
		{"keep it", api.Request{Verb: "confirm"}, shop(), "only root may confirm"},
		{"a freeze", api.Request{Verb: "freeze", Groups: []string{"shop"}, For: time.Minute}, shop(), ""},
		{"root's own user id", api.Request{Verb: "set", Assign: []string{"strict:cpu.limit=1"}}, &api.Caller{},
			"may not set"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine(t, "252")
			m.apply(owned)
			before := m.state()
			c.q.Caller = c.by
			_, err := m.do(c.q)
			switch {
			case c.wrong == "":
				m.must(err)
			case err == nil || !strings.Contains(err.Error(), c.wrong):
				t.Errorf("%v, want an error with %q", err, c.wrong)
			}
			if after := m.state(); c.wrong != "" && after != before {
				t.Errorf("it was refused and changed something:\n%s\nbefore:\n%s", after, before)
			}
			m.release()
		})
	}
}

// What root has set for a group, or frozen, its owner does not undo; what it set itself it takes back.
func TestOwnersLeaveRootsAlone(t *testing.T) {
	m := newMachine(t, "252")
	m.apply(owned)
	asks := func(q api.Request, wrong string) {
		t.Helper()
		q.Caller, q.By = shop(), "shop"
		_, err := m.do(q)
		if wrong == "" && err != nil || wrong != "" &&
			(err == nil || !strings.Contains(err.Error(), wrong) || api.CodeOf(err) != api.CodeRefused) {
			t.Errorf("%s %v: %v, want %q", q.Verb, q.Assign, err, wrong)
		}
	}
	set := func(text string) api.Request { return api.Request{Verb: "set", By: "root", Assign: []string{text}} }
	unset := func(text string) api.Request { return api.Request{Verb: "unset", Assign: []string{text}} }
	asks(set("shop:cpu.limit=2"), "")
	asks(unset("shop:cpu.limit"), "")
	if _, err := m.do(set("shop:cpu.limit=0.6")); err != nil {
		t.Fatal(err)
	}
	asks(set("shop:cpu.limit=2"), "was set by test")
	asks(unset("shop:cpu.limit"), "was set by test")
	asks(set("shop:tasks=50"), "")
	if _, err := m.do(set("shop:tasks=60")); err != nil { // root may replace the owner's
		t.Fatal(err)
	}
	asks(unset("shop:tasks"), "was set by test")
	freeze := api.Request{Verb: "freeze", By: "root", Groups: []string{"shop"}, For: time.Hour}
	thaw := api.Request{Verb: "thaw", Groups: []string{"shop"}}
	asks(freeze, "")
	asks(thaw, "")
	if _, err := m.do(freeze); err != nil {
		t.Fatal(err)
	}
	asks(thaw, "was frozen by test")
	asks(freeze, "was frozen by test")
	if _, err := m.do(thaw); err != nil {
		t.Fatal(err)
	}
	m.release()
}

// An owner moves its own processes, into its own groups, and out of no other's.
func TestOwnersMoveTheirOwn(t *testing.T) {
	m := newMachine(t, "252")
	own, theirs := m.by(m.start("/usr/bin/report"), "54321 54321 54321 54321"),
		m.by(m.start("/usr/bin/report"), "54322 54322 54322 54322")
	dropped := m.by(m.start("/usr/bin/report"), "0 54321 0 54321") // a daemon of root's that acts for the user
	held := m.by(m.start("/usr/bin/strictd"), "54321 54321 54321 54321")
	m.apply(owned)
	asks := func(group string, id procfs.ID, wrong string) {
		t.Helper()
		_, err := m.do(api.Request{Verb: "move", Group: group, PIDs: []int{id.PID}, Caller: shop(54330)})
		if wrong == "" && err != nil || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
			t.Errorf("into %s: %v, want %q", group, err, wrong)
		}
	}
	asks("shop", own, "")
	asks("team", own, `may not move in group "team"`)
	asks("shop", theirs, "is not that of uid 54321 alone")
	asks("shop", dropped, "is not that of uid 54321 alone")
	asks("shop", held, `may not move in group "strict"`)
	if at := m.where(held); !strings.Contains(at, "strict") {
		t.Errorf("it is in %s", at)
	}
	if _, err := m.do(api.Request{Verb: "move", Group: "strict", PIDs: []int{theirs.PID},
		Force: true, Reason: "by hand"}); err != nil {
		t.Fatal(err)
	}
	back := func(id procfs.ID) error {
		_, err := m.do(api.Request{Verb: "move-back", PIDs: []int{id.PID}, Caller: shop()})
		return err
	}
	if err := back(theirs); err == nil || !strings.Contains(err.Error(), "is not that of uid") {
		t.Errorf("another's goes back: %v", err)
	}
	m.must(back(own))
	m.release()
}

// The agent puts a process of an owner into a group that the owner may run in, and no other process.
func TestOwnersRun(t *testing.T) {
	m := newMachine(t, "252")
	m.start("/usr/bin/shopd")
	m.apply(owned)
	enter := func(group, uids string) (procfs.ID, error) {
		p := m.by(m.start("/usr/bin/report"), uids)
		who := shop()
		who.PID = p.PID
		return p, Enter(t.Context(), m.Reconciler.Controller,
			Entry{Group: group, By: "shop", Command: "report", Caller: who})
	}
	p, err := enter("shop", "54321 54321 54321 54321")
	m.must(err)
	if at := m.where(p); !strings.HasPrefix(at, "/bulkhead.shop.slice/") {
		t.Errorf("it is in %s", at)
	}
	if _, err := enter("team", "54321 54321 54321 54321"); err == nil || api.CodeOf(err) != api.CodeRefused {
		t.Errorf("into another's: %v", err)
	}
	if _, err := enter("shop", "0 54321 0 54321"); err == nil || api.CodeOf(err) != api.CodeRefused {
		t.Errorf("a process of root's: %v", err)
	}
	m.release()
}

// Who is let in follows the policy in force.
func TestAdmits(t *testing.T) {
	m := newMachine(t, "252")
	admits := func(when string, open, owns, reads bool) {
		t.Helper()
		if _, err := m.full(); err != nil {
			t.Fatal(err)
		}
		gotOwns, gotReads := m.Admitted.Admits(*shop())
		if m.Admitted.OpenToOthers() != open || gotOwns != owns || gotReads != reads {
			t.Errorf("%s: open %v, owns %v, reads %v", when, m.Admitted.OpenToOthers(), gotOwns, gotReads)
		}
	}
	admits("before", false, false, false)
	m.apply(owned)
	admits("an owner", true, true, true)
	m.apply("agent: {read: root}\n" + owned)
	admits("an owner who may not look", true, true, false)
	m.apply("groups:\n  shop: {match: [{exe: shopd}], tasks: 10}\n")
	admits("nobody", false, false, false)
	m.apply("agent: {read: everyone}\ngroups:\n  shop: {match: [{exe: shopd}], tasks: 10}\n")
	admits("everyone", true, false, true)
	m.release()
	admits("released", false, false, false)
}
