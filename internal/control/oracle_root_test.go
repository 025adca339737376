//go:build root

package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/host"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/reconcile"
	"bulkhead/internal/testhost"
)

// oracleHome is an Oracle home of the test's own: programs that sleep, to run under the names of Oracle's processes.
type oracleHome struct {
	t   testing.TB
	dir string
}

func newOracleHome(t testing.TB) *oracleHome {
	t.Helper()
	o := &oracleHome{t, filepath.Join(t.TempDir(), "product/12.1.0/dbhome_1")}
	if err := os.MkdirAll(filepath.Join(o.dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, program := range map[string]string{"oracle": "/usr/bin/sleep", "rman": "/usr/bin/bash",
		"tnslsnr": "/usr/bin/bash"} {
		text, err := os.ReadFile(program)
		if err == nil {
			err = os.WriteFile(o.bin(name), text, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return o
}

func (o *oracleHome) bin(name string) string { return filepath.Join(o.dir, "bin", name) }

// background starts one process of an instance.
func (o *oracleHome) background(name, sid string) procfs.ID {
	o.t.Helper()
	return testhost.SpawnAs(o.t, "ora_"+name+"_"+sid, o.bin("oracle"), "infinity")
}

// parent starts a program that starts sessions and waits: as the listener does, forked twice so that init is their
// parent, or as children.
func (o *oracleHome) parent(program string, orphans bool, titles ...string) procfs.ID {
	o.t.Helper()
	script := ""
	for _, title := range titles {
		line := fmt.Sprintf("exec -a '%s' '%s' infinity &", title, o.bin("oracle"))
		if orphans {
			line = "(" + line + ")\n"
		}
		script += line + "\n"
	}
	return testhost.SpawnAs(o.t, o.bin(program), o.bin(program), "-c", script+"while :; do sleep 1000; done")
}

// sessions waits until so many sessions of an instance are there.
func (o *oracleHome) sessions(h *host.Host, title string, want int) []procfs.Process {
	o.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		procs, err := h.Proc.Processes(procfs.Options{})
		if err != nil {
			o.t.Fatal(err)
		}
		var found []procfs.Process
		for _, p := range procs {
			if p.Exe == o.bin("oracle") && len(p.Args) > 0 && p.Args[0] == title {
				found = append(found, p)
			}
		}
		if len(found) >= want {
			return found
		}
		if time.Now().After(deadline) {
			o.t.Fatalf("%d of %d processes called %q", len(found), want, title)
		}
	}
}

// The case of the Oracle document on processes with those names: two instances behind one listener, each with limits
// of its own, one asked for by its SID and one by the patterns; the log writers stay where they are, and so does the
// listener. A session that comes later is placed by the next look.
func TestOracleDocument(t *testing.T) {
	const remote = "oracle%s (LOCAL=NO)"
	s, o := newSite(t), newOracleHome(t)
	place := make(map[procfs.ID]string) // group, "" for none
	for sid, group := range map[string]string{"BXTST01": "BX1/sessions", "BXTST02": "BX2/sessions"} {
		for _, name := range []string{"pmon", "lgwr", "lg00", "ckpt", "dbw0", "smon"} {
			place[o.background(name, sid)] = ""
		}
		place[o.background("p000", sid)], place[o.background("p00f", sid)] = group, group
	}
	listener := o.parent("tnslsnr", true, fmt.Sprintf(remote, "BXTST01"), fmt.Sprintf(remote, "BXTST02"),
		fmt.Sprintf(remote, "BXTST02"))
	place[listener] = ""
	for _, p := range o.sessions(s.Host, fmt.Sprintf(remote, "BXTST01"), 1) {
		if p.PPID == listener.PID {
			t.Errorf("the parent of session %d is the listener", p.PID)
		}
		place[p.ID] = "BX1/sessions"
	}
	for _, p := range o.sessions(s.Host, fmt.Sprintf(remote, "BXTST02"), 2) {
		place[p.ID] = "BX2/sessions"
	}
	// exe keeps out what another copy of this test runs under the same names.
	text := fmt.Sprintf(`groups:
  BX1:
    cpu: {limit: 0.5}
    groups:
      sessions:
        match:
          - {engine: oracle, sid: BXTST01, part: sessions, exe: '%[1]s'}
          - {engine: oracle, sid: BXTST01, part: parallel, exe: '%[1]s'}
  BX2:
    cpu: {limit: 0.25}
    groups:
      sessions:
        match:
          - {cmdline: 'BXTST02.*LOCAL=NO', exe: '%[1]s'}
          - {cmdline: 'ora_p[[:digit:]].{2}_BXTST02', exe: '%[1]s'}
`, o.bin("oracle"))
	s.apply(text)
	check := func(when string) {
		t.Helper()
		for id, group := range place {
			got := strings.Contains(s.where("cpu", id), s.root)
			if group == "" && got || group != "" && s.where("cpu", id) != s.at("", group).Path {
				t.Errorf("%s: process %d is in %q, want group %q", when, id.PID, s.where("cpu", id), group)
			}
		}
	}
	check("applied")
	s.holds("applied", "BX1:cpu.limit=0.5")
	s.holds("applied", "BX2:cpu.limit=0.25")

	o.parent("tnslsnr", true, fmt.Sprintf(remote, "BXTST01"))
	for _, p := range o.sessions(s.Host, fmt.Sprintf(remote, "BXTST01"), 2) {
		place[p.ID] = "BX1/sessions"
	}
	if _, err := s.Look(context.Background(), reconcile.LookOptions{Full: true, Changed: true}); err != nil {
		t.Fatal(err)
	}
	check("a session later")

	// An event about a session alone tells that it may have to be moved, one about a stranger that it need not.
	o.parent("tnslsnr", true, fmt.Sprintf(remote, "BXTST02"))
	stranger := testhost.Spawn(t, "sleep", "600")
	prefilter := s.Prefilter()
	for _, p := range o.sessions(s.Host, fmt.Sprintf(remote, "BXTST02"), 3) {
		if _, known := place[p.ID]; !known && !prefilter.Concerns(p.PID) {
			t.Errorf("session %d concerns no group", p.PID)
		}
	}
	if prefilter.Concerns(stranger.PID) {
		t.Error("a stranger concerns a group")
	}

	// The listener in the group of one of them is an error, with its place.
	_, err := inspect.Check(t.Context(), s.Reconciler.Controller,
		s.sources(strings.Replace(text, "        match:\n          - {cmdline",
			"        match:\n          - {exe: '"+o.bin("tnslsnr")+"'}\n          - {cmdline", 1)))
	var problems policy.Problems
	if !errors.As(err, &problems) || !strings.Contains(problems.Error(),
		"which also starts the sessions of oracle-BXTST01") {
		t.Errorf("check: %v", err)
	}
}

// An RMAN and the sessions that it starts for itself are a backup of their instance, and explain says whose.
func TestHelperOfOracle(t *testing.T) {
	const local = "oracleBHTEST (DESCRIPTION=(LOCAL=YES)(ADDRESS=(PROTOCOL=beq)))"
	s, o := newSite(t), newOracleHome(t)
	for _, name := range []string{"pmon", "lgwr"} {
		o.background(name, "BHTEST")
	}
	rman := o.parent("rman", false, local)
	channel := o.sessions(s.Host, local, 1)[0]
	s.apply(fmt.Sprintf(`groups:
  backups: {role: helper, match: [{engine: oracle, sid: BHTEST, helper: backup, exe: '%s/bin/*'}], cpu: {limit: 0.5}}
`, o.dir))
	for _, id := range []procfs.ID{rman, channel.ID} {
		if got := s.where("cpu", id); got != s.at("", "backups").Path {
			t.Errorf("process %d is in %q", id.PID, got)
		}
		e, err := inspect.Explain(t.Context(), s.Reconciler.Controller, id.PID, inspect.ExplainOptions{})
		if err != nil || !strings.Contains(e.Helper, "it is a helper (backup, rman) of oracle BHTEST") {
			t.Errorf("explain: %+v, %v", e, err)
		}
	}
}
