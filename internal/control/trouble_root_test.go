//go:build root

package control

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/release"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
)

// spoil overwrites a file of the state directory with garbage.
func (s *site) spoil(name string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.state, name), []byte("garbage\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	s.reopen()
}

// Whatever document is damaged, release gives the host back and apply governs it again.
func TestDamagedDocumentsDoNotBlockTheWaysOut(t *testing.T) {
	for _, name := range []string{"next.json", "applied.json", "overrides.json", "released.json", "pins.json",
		"freezes.json"} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			p, m := marked(t, 70101)
			home := s.where("cpu", p)
			text := "groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: 1}}\n"
			s.apply(text)
			s.spoil(name)
			s.apply(text)
			if got := s.where("cpu", p); got != "/"+s.root+"/g" {
				t.Errorf("after apply: in %s", got)
			}
			s.spoil(name)
			s.must(api.Request{Verb: "release", All: true})
			if got := s.where("cpu", p); got != home {
				t.Errorf("after release: in %s", got)
			}
			aside, err := filepath.Glob(filepath.Join(s.state, name+".damaged-*"))
			if err != nil || len(aside) == 0 {
				t.Errorf("the damaged document was not kept: %v, %v", aside, err)
			}
		})
	}
}

// With journal and history lost nothing says that the groups are ours: release says so and does nothing
// until it is forced.
func TestReleaseWithoutAJournal(t *testing.T) {
	s := newSite(t)
	p, m := marked(t, 70102)
	s.apply("groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: 1}}\n")
	for _, name := range []string{"journal.log", "history.log"} {
		if err := os.Remove(filepath.Join(s.state, name)); err != nil {
			t.Fatal(err)
		}
	}
	s.reopen()
	_, err := s.try(api.Request{Verb: "release", All: true})
	if api.CodeOf(err) != api.CodeRefused || !strings.Contains(api.HintOf(err), "--force") {
		t.Fatalf("code %d: %v, hint %q", api.CodeOf(err), err, api.HintOf(err))
	}
	if got := s.where("cpu", p); got != "/"+s.root+"/g" {
		t.Errorf("refused, yet the process is in %s", got)
	}
	s.must(api.Request{Verb: "release", All: true, Force: true, Reason: "the journal was lost"})
	if got := s.where("cpu", p); strings.Contains(got, s.root) {
		t.Errorf("forced, yet the process is in %s", got)
	}
	for _, h := range testhost.Hierarchies(t) {
		if there, _ := testhost.Tree(t).Exists(s.at(h.ID, "")); there {
			t.Errorf("%s still has the root group", h.ID)
		}
	}
}

// One damaged record of the journal, an old one too, closes neither way out, and status says that records are
// missing until there is nothing left to give back.
func TestOneDamagedRecord(t *testing.T) {
	t.Parallel()
	p, m := marked(t, 70107)
	q, n := marked(t, 70108)
	group := func(name, mark string) string {
		return "  " + name + ": {match: [{cmdline: '" + mark + "'}], cpu: {limit: 1}, tasks: 500, oom_score_adj: 100}\n"
	}
	first := "groups:\n" + group("a", m)
	second := first + group("b", n)
	every := 4 // records
	if os.Getenv("LONG") != "" {
		every = 1
	}
	for i, records := 0, 1; i < records; i += min(every, max(1, records-1-i)) { // the last one, too
		s := newSite(t)
		homes := []string{s.where("cpu", p), s.where("cpu", q)}
		s.apply(first)
		s.apply(second)
		log := filepath.Join(s.state, "journal.log")
		data, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.SplitAfter(string(data), "\n")
		records = len(lines) - 1 // the last line is empty
		lines[i] = lines[i][:20] + "~" + lines[i][21:]
		if err := os.WriteFile(log, []byte(strings.Join(lines, "")), 0o600); err != nil {
			t.Fatal(err)
		}
		s.reopen()
		s.must(api.Request{Verb: "set", Assign: []string{"a:cpu.limit=0.5"}})
		s.reopen()
		st, err := inspect.Status(t.Context(), s.Reconciler.Controller)
		if err != nil || len(st.Warnings) != 1 && i < records-1 { // a torn end is mended whole
			t.Errorf("record %d of %d: status after the mending: %q, %v", i, records, st.Warnings, err)
		}
		s.apply(second)
		s.reopen()
		s.must(api.Request{Verb: "release", All: true})
		if got := []string{s.where("cpu", p), s.where("cpu", q)}; !slices.Equal(got, homes) {
			t.Errorf("record %d of %d: released to %q, from %q", i, records, got, homes)
		}
		for _, h := range testhost.Hierarchies(t) {
			if there, _ := testhost.Tree(t).Exists(s.at(h.ID, "")); there {
				t.Errorf("record %d of %d: %s still has the root group", i, records, h.ID)
			}
		}
		for _, id := range []procfs.ID{p, q} {
			if score, err := s.Host.Proc.ReadOOMScoreAdj(id); err != nil || score != 0 {
				t.Errorf("record %d of %d: oom_score_adj %d, %v", i, records, score, err)
			}
		}
		s.reopen()
		if w := s.Warnings(); len(w) > 0 {
			t.Errorf("record %d of %d: released: warnings %q", i, records, w)
		}
	}
}

// With no record at all, a root group that may be ours is refused by name until it is forced; only when there is
// none is there nothing to do, and that is said with what was looked for.
func TestReleaseWithoutAnyRecord(t *testing.T) {
	s := newSite(t)
	p, m := marked(t, 70109)
	none, usual := s.root+"-none", release.UsualRoots
	t.Cleanup(func() { release.UsualRoots = usual })
	all := api.Request{Verb: "release", All: true}
	forced := api.Request{Verb: "release", All: true, Force: true, Reason: "test"}
	for name, c := range map[string]struct {
		root    string
		sources []policy.Source
	}{
		"default root": {s.root, nil},
		"default root beside another": {s.root,
			[]policy.Source{{Path: "p.yaml", Text: "version: 1\nhost: {root: " + none + "}\n"}}},
		"root of the policy":      {none, s.sources("")},
		"root of a broken policy": {none, s.sources("groups: 3\n")},
	} {
		s.state = t.TempDir()
		s.reopen()
		s.apply("groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: 1}}\n")
		release.UsualRoots, s.state = []string{c.root}, t.TempDir()
		s.reopen()
		all.Sources, forced.Sources = c.sources, c.sources
		_, err := s.try(all)
		if api.CodeOf(err) != api.CodeRefused || !strings.Contains(err.Error(), "/"+s.root+":") ||
			strings.Contains(err.Error(), none) || !strings.Contains(api.HintOf(err), "--force") {
			t.Errorf("%s: code %d: %v, hint %q", name, api.CodeOf(err), err, api.HintOf(err))
		}
		if got := s.where("cpu", p); got != "/"+s.root+"/g" {
			t.Errorf("%s: refused, yet the process is in %s", name, got)
		}
		if r := s.must(forced); !r.Changed {
			t.Errorf("%s: forced, and nothing changed", name)
		}
		if got := s.where("cpu", p); strings.Contains(got, s.root) {
			t.Errorf("%s: forced, yet the process is in %s", name, got)
		}
	}
	release.UsualRoots, s.state = []string{none}, t.TempDir()
	s.reopen()
	all.Sources = s.sources("")
	r := s.must(all)
	if want := "nothing to do: no applied policy is known in " + s.state + ", and this host has no directory " +
		s.root + " or " + none; r.Text != want || r.Changed {
		t.Errorf("nothing there: %q, want %q", r.Text, want)
	}
}

// A root group of somebody else's is refused, whatever is forced, and no policy counts as applied.
func TestForeignRootIsRefused(t *testing.T) {
	s := newSite(t)
	d := s.at(s.of("cpu").ID, "")
	tree := testhost.Tree(t)
	if err := tree.Make(d); err != nil {
		t.Fatal(err)
	}
	_, m := marked(t, 70103)
	for _, force := range []bool{false, true} {
		_, err := s.try(api.Request{Verb: "apply",
			Sources: s.sources("groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: 1}}\n"), Force: force,
			Reason: "test"})
		if api.CodeOf(err) != api.CodeRefused || !strings.Contains(err.Error(), s.root) {
			t.Errorf("force %t: code %d, %v", force, api.CodeOf(err), err)
		}
	}
	if _, _, err := s.Current(t.Context(), transaction.ViewOptions{}); err == nil {
		t.Error("a policy counts as applied")
	}
	if there, err := tree.Exists(d); err != nil || !there {
		t.Errorf("the foreign group is gone: %v", err)
	}
}

// What was sound when it was applied keeps working for everybody when one process becomes ambiguous or a
// device goes away.
func TestVerbsGoOnBesideTrouble(t *testing.T) {
	s := newSite(t)
	p, m := marked(t, 70104)
	both := fmt.Sprintf("70105.%d", os.Getpid())
	s.apply(fmt.Sprintf(`groups:
  a: {match: [{cmdline: '%s'}, {cmdline: '^sleep %s$'}], cpu: {limit: 1}}
  b: {match: [{cmdline: '^sleep %s$'}], cpu: {limit: 1}}
`, m, both, both))
	torn := testhost.Spawn(t, "sleep", both)
	r := s.must(api.Request{Verb: "set", Assign: []string{"a:cpu.limit=0.5"}})
	if len(r.Problems) != 1 {
		t.Errorf("problems %v", r.Problems)
	}
	s.holds("after set", "a:cpu.limit=0.5")
	st, err := inspect.Status(t.Context(), s.Reconciler.Controller)
	if err != nil || len(st.Problems) != 1 {
		t.Errorf("status: %+v, %v", st, err)
	}
	s.must(api.Request{Verb: "move", Group: "b", PIDs: []int{torn.PID}})
	if got := s.where("cpu", torn); got != "/"+s.root+"/b" {
		t.Errorf("moved by hand: in %s", got)
	}
	if got := s.where("cpu", p); got != "/"+s.root+"/a" {
		t.Errorf("its neighbour is in %s", got)
	}
	// A new policy is held to the whole measure.
	testhost.Spawn(t, "sleep", both)
	_, err = s.try(api.Request{Verb: "apply", Sources: s.sources("groups:\n  a: {match: [{cmdline: '^sleep " + both +
		"$'}], cpu: {limit: 1}}\n  b: {match: [{cmdline: '^sleep " + both + "$'}], cpu: {limit: 1}}\n")})
	if api.CodeOf(err) != api.CodeUsage {
		t.Errorf("a new ambiguous policy: %v", err)
	}
}

// A second rollback goes further back, not forth again.
func TestRollbackTwice(t *testing.T) {
	s := newSite(t)
	_, m := marked(t, 70106)
	for _, limit := range []string{"1", "0.5", "0.25"} {
		s.apply("groups:\n  g: {match: [{cmdline: '" + m + "'}], cpu: {limit: " + limit + "}}\n")
	}
	s.must(api.Request{Verb: "rollback", DryRun: true})
	s.holds("after a dry run", "g:cpu.limit=0.25")
	for _, limit := range []string{"0.5", "1"} {
		s.must(api.Request{Verb: "rollback"})
		s.holds("after a rollback", "g:cpu.limit="+limit)
	}
	if _, err := s.try(api.Request{Verb: "rollback"}); api.CodeOf(err) != api.CodeUsage {
		t.Errorf("before the first revision: %v", err)
	}
}
