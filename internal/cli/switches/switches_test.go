package switches

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/linux/ctxswitch"
	"bulkhead/internal/switches"
	"bulkhead/internal/transaction"
)

// The verb counts, and measures no maximum unless it is told to: a load would fail here, as it has no program.
func TestNoSweepByItself(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	look := func() (*transaction.Controller, error) {
		return transaction.Open(transaction.Options{State: dir, Probe: []string{"no such verb"}})
	}
	var got *view
	c := Command(io.Discard, look, func(v any, text func()) error {
		got = v.(*view)
		text()
		return nil
	})
	c.SetArgs([]string{"--for", "100ms"})
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	if got.Maximum != nil || got.Report.Total == 0 || len(got.Report.Procs) == 0 {
		t.Errorf("%+v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "switches-maximum.json")); !os.IsNotExist(err) {
		t.Errorf("a maximum was kept: %v", err)
	}
}

// An instance that does not run is said before anything is counted.
func TestNoSuchInstance(t *testing.T) {
	look := func() (*transaction.Controller, error) {
		return transaction.Open(transaction.Options{NoState: true})
	}
	for _, args := range [][]string{{"no-such", "--for", "1h"},
		{"--for", "1h", "--dsn", "no-such=mysql://app@localhost/"}} {
		c := Command(io.Discard, look, func(any, func()) error { return nil })
		c.SetArgs(args)
		c.SilenceUsage, c.SilenceErrors = true, true
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // it would end with an error of its own
		err := c.ExecuteContext(ctx)
		cancel()
		if err == nil || !strings.Contains(err.Error(), "no-such") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestPrint(t *testing.T) {
	v := &view{
		Report: &switches.Report{Span: 2 * time.Second, PerCPU: 61_000, CPUs: []switches.CPU{{ID: 0, Rate: 61_000}},
			Servers: []switches.Use{{Name: "mysql3306", PID: 7, Rate: 50_000, Count: ctxswitch.Count{Voluntary: 75_000,
				Involuntary: 25_000}}},
			Procs:   []switches.Use{{Name: "mariadbd", PID: 7, Instance: "mysql3306"}, {Name: "sh", Instance: "other"}},
			Queries: []switches.Queries{{Instance: "mysql3306", Counter: "Questions", Done: 20_000, PerQuery: 5}},
			Notes:   []string{"some are not counted"}},
		Maximum:  &switches.Maximum{Rate: 500_000},
		Verdicts: map[string]string{"mysql3306": "contention is unlikely"}, Warnings: []string{"too many"},
	}
	var out strings.Builder
	printAll(&out, v)
	v.only("mysql3306")
	printInstance(&out, v, "mysql3306")
	for _, part := range []string{
		"61000 switches a second for each CPU, counted for 2.0 s", "12.2 % of the maximum, 500000",
		"7    mysql3306  50000       75000      25000        25 %", "ended  sh",
		"mysql3306: 5.0 switches for each of 20000 Questions; contention is unlikely",
		"warning: too many", "note: some are not counted",
	} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("%q is missing in\n%s", part, out.String())
		}
	}
	if strings.Count(out.String(), "ended  sh") != 1 {
		t.Errorf("the process of another one is shown:\n%s", out.String())
	}
}
