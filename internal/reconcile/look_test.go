package reconcile

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan"
	"bulkhead/internal/transaction"
)

// A look tells what it put right once for all hierarchies, and not again on every look; of processes it tells nothing.
func TestCorrectionsAreTold(t *testing.T) {
	var log bytes.Buffer
	c := &Reconciler{Controller: &transaction.Controller{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	at := func(hierarchy string) change.Target {
		return cgroup.Dir{Hierarchy: hierarchy, Path: "/bulkhead.g"}.Target()
	}
	step := func(t change.Target, from, to string) plan.Step {
		return plan.Step{Change: change.Of(t, from, to), Group: "g", Reason: "the group's limits"}
	}
	makes := plan.Plan{Steps: []plan.Step{step(at("cpu"), "", cgroup.There), step(at("memory"), "", cgroup.There),
		step(cgroup.Membership(procfs.ID{PID: 7, Start: 1}, "cpu"), "/", "/bulkhead.g")}}
	removes := plan.Plan{Steps: []plan.Step{step(at("cpu"), cgroup.There, "")}}
	shares := cgroup.Dir{Hierarchy: "cpu", Path: "/"}.File("cpu.shares").Target()
	write := plan.Plan{Steps: []plan.Step{{Change: change.Of(shares, "1024", "10240\n"), Reason: "cpu.weight 1000"}}}
	now := time.Now()
	for _, s := range []struct {
		what   string
		plan   plan.Plan
		failed error
		after  time.Duration
		want   string // what is told, "" for nothing
	}{
		{"a directory in two hierarchies", makes, nil, 0,
			`level=INFO msg="put right" do=mkdir group=g dir=/bulkhead.g why="the group's limits"`},
		{"again", makes, nil, 0, ""},
		{"and away", removes, nil, 0, "do=rmdir"},
		{"and back", makes, nil, 0, "do=mkdir"},
		{"a value of the root group", write, nil, 0,
			`do=write group="(root group)" dir=/ file=cpu.shares from=1024 to=10240 why="cpu.weight 1000"`},
		{"on the next look", write, nil, time.Second, ""},
		{"when it fails", write, errors.New("busy"), time.Second, `level=WARN msg="tried to put right" do=write`},
		{"when it fails again", write, errors.New("busy"), time.Second, ""},
		{"much later", write, nil, tellAgain, "do=write"},
	} {
		log.Reset()
		now = now.Add(s.after)
		c.tell(s.plan, s.failed, now)
		if got := log.String(); strings.Count(got, "\n") != min(len(s.want), 1) || !strings.Contains(got, s.want) {
			t.Errorf("%s: told %q, want %q", s.what, got, s.want)
		}
	}
}
