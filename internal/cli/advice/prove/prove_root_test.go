//go:build root

package prove

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/advise/proved"
	"bulkhead/internal/api"
	"bulkhead/internal/bench"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/control"
	"bulkhead/internal/policy"
	"bulkhead/internal/scenario"
	"bulkhead/internal/state"
	"bulkhead/internal/testhost"
	"bulkhead/internal/transaction"
)

const small = `version: 1
name: small
title: a Redis that is read
rounds: 1
seconds: 1
databases:
  db: {engine: redis}
loads:
  client: {program: redis-benchmark, on: db, script: get, threads: "2"}
arms:
  alone: {text: alone}
control: alone
shape:
  - {what: "it is read", measure: alone.client.tps, least: "1"}
`

// shown is a throw-away database that is said to lie on the disk of the test.
type shown struct {
	ThrowAway
	during func(text string) error
}

func (s shown) Open(ctx context.Context, do func(context.Context, Subject) error) error {
	return s.ThrowAway.Open(ctx, func(ctx context.Context, of Subject) error {
		measure := of.Measure
		of.Apart = func(string) string { return "" }
		of.Measure = func(ctx context.Context, text string, done, all int) (proved.Sample, error) {
			if err := s.during(text); err != nil {
				return nil, err
			}
			return measure(ctx, text, done, all)
		}
		return do(ctx, of)
	})
}

// The read-ahead of a disk of the test's own is measured on a throw-away Redis: in force while it is measured with the
// change and at no other time, kept or taken back as the result says, and gone when it is broken off.
func TestProveRoot(t *testing.T) {
	testhost.RequireRoot(t)
	dev, _ := testhost.LoopDevice(t, 16<<20)
	disk := filepath.Base(dev)
	held := func() string {
		t.Helper()
		text, err := os.ReadFile("/sys/block/" + disk + "/queue/read_ahead_kb")
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	before := held()
	n, err := strconv.Atoi(before)
	if err != nil {
		t.Fatal(err)
	}
	wanted := strconv.Itoa(n + 64)
	c, err := transaction.Open(transaction.Options{State: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	do := func(ctx context.Context, q api.Request) (*api.Reply, error) { return control.Do(ctx, c, q) }
	must := func(q api.Request) {
		t.Helper()
		if _, err := do(context.Background(), q); err != nil {
			t.Fatal(err)
		}
	}
	must(api.Request{Verb: "apply",
		Sources: []policy.Source{{Path: "p", Text: "version: 1\nhost: {root: " + testhost.Root(t) + "}\n"}}})
	defer must(api.Request{Verb: "release", All: true})
	file := filepath.Join(t.TempDir(), "small.yaml")
	if err := os.WriteFile(file, []byte(small), 0o600); err != nil {
		t.Fatal(err)
	}
	sc, err := scenario.Find(file)
	if err != nil {
		t.Fatal(err)
	}
	away := ThrowAway{Scenario: sc, Options: bench.Options{Rounds: 1, Seconds: 1, Dir: "/var/tmp"}}
	q := api.Request{Verb: "tune apply", Tune: []state.Tuned{{Rule: "IO-05", Name: "disk " + disk + "/read_ahead_kb",
		Value: wanted}}}

	if _, err := Run(t.Context(), do, away, q, 1, 1); err == nil ||
		!strings.Contains(err.Error(), "the database lies on") {
		t.Errorf("a disk without the database: %v", err)
	}
	broken := errors.New("broken off")
	_, err = Run(t.Context(), do, shown{away, func(string) error {
		if held() == wanted {
			return errors.Join(broken, process.ErrInterrupted)
		}
		return nil
	}}, q, 1, 1)
	if now := held(); !errors.Is(err, broken) || now != before {
		t.Errorf("broken off: %v, it holds %s, want %s", err, now, before)
	}
	var measured []string
	r, err := Run(t.Context(), do, shown{away, func(text string) error {
		if with := strings.HasSuffix(text, "with the change"); with != (held() == wanted) {
			t.Errorf("%s: it holds %s", text, held())
		}
		measured = append(measured, text)
		return nil
	}}, q, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	after := map[bool]string{true: wanted, false: before}[r.Kept]
	if held() != after || r.Kept != (r.Verdict != proved.Worse) || len(measured) != 3 {
		t.Errorf("it holds %s, measured %q: %+v", held(), measured, r)
	}
	for _, f := range r.Figures {
		if !(f.Before > 0) || !(f.After > 0) {
			t.Errorf("%s was not measured: %+v", f.Name, f)
		}
	}
	if r.Kept {
		must(api.Request{Verb: "tune rollback"})
	}
	if now := held(); now != before {
		t.Errorf("taken back it holds %s, want %s", now, before)
	}
}
