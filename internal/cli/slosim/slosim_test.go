package slosim

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"pgregory.net/rapid"

	"bulkhead/internal/cli/usage"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
)

var begin = time.Date(2026, 11, 20, 1, 0, 0, 0, time.Local)

// counters are what a made-up host counts.
type counters struct{ busy, db, backup, reports, waited float64 }

// written is a file with the record of 20 minutes on 4 CPUs: mysql3306 uses 1 core, of which its backup has 0.2; from
// the tenth minute on reports uses 2 and would use 1 more, and the target is missed.
func written(t testing.TB, signal string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "incident")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var c counters
	err = record.Write(f, func(yield func(record.Tick) error) error {
		for i := range 241 {
			at := begin.Add(time.Duration(i) * 5 * time.Second)
			value, reports := 0.008, 0.0
			if i > 120 {
				value, reports = 0.016, 2
			}
			c.busy, c.db, c.backup = c.busy+5*(1.2+reports), c.db+5, c.backup+1
			c.reports, c.waited = c.reports+5*reports, c.waited+2.5*reports
			db := []string{"mysql3306", "database", "mysql"}
			key := func(metric string, labels ...string) record.Key {
				return record.KeyOf("bulkhead_"+metric, labels...)
			}
			tick := record.Tick{At: at, Parts: []record.Part{
				{Name: observe.CPU, Figures: []record.Figure{
					{Key: key("group_cpu_seconds_total", db...), Value: c.db},
					{Key: key("group_cpu_seconds_total", "mysql3306/backup", "helper", ""), Value: c.backup},
					{Key: key("group_cpu_seconds_total", "reports", "batch", ""), Value: c.reports}}},
				{Name: observe.Threads, Figures: []record.Figure{
					{Key: key("group_cpu_waiting_seconds_total", "reports", "batch", ""), Value: c.waited}}},
				{Name: observe.Stat, Figures: []record.Figure{{Key: key("host_cpus"), Value: 4},
					{Key: key("host_cpu_seconds_total", "busy"), Value: c.busy}}},
				{Name: observe.Limits, Figures: []record.Figure{
					{Key: key("group_limit", "reports", "batch", "", "cpu.limit", ""), Value: 3},
					{Key: key("group_slo_target", append(db, signal)...), Value: 0.012},
					{Key: key("group_slo_value", append(db, signal)...), Value: value}}}}}
			for j := range tick.Parts {
				tick.Parts[j].Read = at
			}
			if err := yield(tick); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// verb runs the verb; the record is that of the file.
func verb(file string, args ...string) (string, error) {
	var out bytes.Buffer
	asJSON := len(args) > 0 && args[len(args)-1] == "--json"
	if asJSON {
		args = args[:len(args)-1]
	}
	c := Command(Session{Out: &out, Print: func(v any, text func()) error {
		if asJSON {
			return json.NewEncoder(&out).Encode(v)
		}
		text()
		return nil
	},
		Reach: func(context.Context, string) (record.Reach, error) { return record.Survey(file) },
		Segments: func(_ context.Context, _ string, from, to time.Time) (io.ReadCloser, error) {
			return record.Open(file, from, to)
		},
		Between: func(_, _, _ string, reach record.Reach) (time.Time, time.Time, error) {
			return reach.From, reach.To, nil
		},
		FileFlag: func(c *cobra.Command, p *string) { c.Flags().StringVar(p, "file", "", "") }})
	c.SetArgs(append([]string{"simulate"}, args...))
	c.SilenceErrors, c.SilenceUsage = true, true
	err := c.Execute()
	return out.String(), err
}

func TestRecorded(t *testing.T) {
	file := written(t, "p95")
	segments, err := record.Open(file, begin, begin.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer segments.Close()
	r, err := read(t.Context(), segments, "mysql3306", begin, begin.Add(20*time.Minute))
	if err != nil || r.check() != nil {
		t.Fatal(err, r.check())
	}
	d := r.day
	if d.CPUs != 4 || d.Target.Value != 0.012 || d.Known[0] || !d.Known[1] || !d.Known[239] || len(d.Groups) != 2 {
		t.Fatalf("%+v", d)
	}
	near := func(what string, got, want float64) {
		if got < want-1e-6 || got > want+1e-6 {
			t.Errorf("%s is %g, not %g", what, got, want)
		}
	}
	near("the load of the database, less its backup", d.Load[200], 0.8)
	near("what others use", d.Others[200], 0.2)
	backup, reports := d.Groups[0], d.Groups[1]
	near("the ceiling of the backup", backup.Ceiling, 4)
	near("what the backup uses", backup.Wanted[200], 0.2)
	near("the ceiling of reports", reports.Ceiling, 3)
	near("what reports uses", reports.Used[200], 2)
	near("what reports would use", reports.Wanted[200], 3)
	near("what reports uses before", reports.Used[100], 0)
}

func TestVerb(t *testing.T) {
	file := written(t, "p95")
	out, err := verb(file, "mysql3306")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{model, "mysql3306 as it was recorded from 2026-11-20 01:00:00 to 2026-11-20 01:20:00",
		"4 CPUs, target: p95 12ms", "recorded: 119 of 239 windows missed",
		"would lower reports:cpu.limit to", "no policy", "best static limit (", "koordlet", "Heracles"} {
		if !strings.Contains(out, want) {
			t.Errorf("there is no %q in\n%s", want, out)
		}
	}
	out, err = verb(file, "mysql3306", "--json")
	var v view
	if err != nil || json.Unmarshal([]byte(out), &v) != nil || v.Model == "" || len(v.Rules) != 6 ||
		v.Recorded.Missed != 119 || v.Fit == nil || len(v.Said) == 0 {
		t.Errorf("%v: %s", err, out)
	}
	first, err := verb("", "--cpus", "2", "--step", "5m")
	if second, _ := verb("", "--cpus", "2", "--step", "5m"); err != nil || first != second ||
		!strings.Contains(first, "2 CPUs, target: p95 75ms") {
		t.Errorf("%v: %s\n%s", err, first, second)
	}
	// Without a window that begins 10 s after a step the best static limit is by all windows, and not "no limit".
	if quick, err := verb("", "--cpus", "2", "--step", "5s"); err != nil ||
		!strings.Contains(quick, "is not decided") || strings.Contains(quick, "best static limit (2.00)") {
		t.Errorf("%v: %s", err, quick)
	}
	if other, err := verb("", "--cpus", "2", "--step", "5m", "--seed", "2"); err != nil || other == first {
		t.Errorf("another seed, %v: %s", err, other)
	}
}

func TestRefused(t *testing.T) {
	work := written(t, "work")
	for _, c := range []struct{ file, args, want string }{
		{work, "--from 02:00", "say of which INSTANCE"},
		{work, "mysql3306 --cpus 2", "leave them out with an INSTANCE"},
		{work, "--cpus 0", "--cpus is from"},
		{work, "--step 1s", "--step is from 5 s to 4 h"},
		{work, "--step 7s", "in whole 5 s"},
		{work, "--seed x", "invalid argument"},
		{work, "mysql3306", "there is no model"},
		{work, "reports", "no promise to \"reports\""},
		{work, "nobody", "no promise to \"nobody\""},
		{"/nowhere", "mysql3306", "no such file"},
	} {
		_, err := verb(c.file, strings.Fields(c.args)...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.args, err)
		}
	}
	_, err := verb(work, "mysql3306")
	if usage.HintOf(err) != "" {
		t.Errorf("what is recorded is no usage: %v", err)
	}
}

// Whatever is in a file, the verb ends with an error or with figures.
func TestGarbage(t *testing.T) {
	whole, err := os.ReadFile(written(t, "p95"))
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "garbage")
	rapid.Check(t, func(t *rapid.T) {
		text := bytes.Clone(whole[:rapid.IntRange(0, len(whole)).Draw(t, "length")])
		for range rapid.IntRange(0, 3).Draw(t, "damage") {
			if len(text) > 0 {
				text[rapid.IntRange(0, len(text)-1).Draw(t, "at")] ^= rapid.Byte().Draw(t, "with")
			}
		}
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := verb(name, "mysql3306"); err == nil && !strings.Contains(out, "best static limit") {
			t.Fatalf("%s", out)
		}
	})
}

// Figures that make no sense, in a record that is whole.
func TestSenseless(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		figures := rapid.SampledFrom([]float64{-1, 0, 1e-300, 0.01, 1, 4, 1e9, 1e300, math.MaxFloat64,
			math.Inf(1), math.NaN()})
		db := []string{"a", "database", ""}
		var b bytes.Buffer
		err := record.Write(&b, func(yield func(record.Tick) error) error {
			for i := range rapid.IntRange(1, 30).Draw(t, "samples") {
				at := begin.Add(time.Duration(i) * 5 * time.Second)
				tick := record.Tick{At: at}
				add := func(p observe.Part, metric string, labels ...string) {
					figure := record.Figure{Key: record.KeyOf("bulkhead_"+metric, labels...)}
					figure.Value = figures.Draw(t, metric)
					tick.Parts = append(tick.Parts, record.Part{Name: p, Read: at, Figures: []record.Figure{figure}})
				}
				add(observe.CPU, "group_cpu_seconds_total", db...)
				add(observe.Stat, "host_cpu_seconds_total", "busy")
				add(observe.Limits, "group_slo_target", append(db, "waits")...)
				for _, metric := range []string{"host_cpus", "group_slo_value", "group_limit"} {
					at := &tick.Parts[1]
					labels := map[string][]string{"group_slo_value": append(db, "waits"),
						"group_limit": {"b", "batch", "", "cpu.limit", ""}}[metric]
					if metric != "host_cpus" {
						at = &tick.Parts[2]
					}
					at.Figures = append(at.Figures, record.Figure{Key: record.KeyOf("bulkhead_"+metric, labels...),
						Value: figures.Draw(t, metric)})
				}
				tick.Parts[0].Figures = append(tick.Parts[0].Figures, record.Figure{Value: figures.Draw(t, "batch"),
					Key: record.KeyOf("bulkhead_group_cpu_seconds_total", "b", "batch", "")})
				if err := yield(tick); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		r, err := read(t.Context(), &b, "a", begin, begin.Add(3*time.Minute))
		if err != nil || r.check() != nil {
			return
		}
		v := view{}
		v.recorded(r)
		for _, one := range r.day.Compare() {
			if !finite(one.Work) || !finite(one.OfBest) {
				t.Fatalf("%+v of %+v", one, r.day)
			}
		}
	})
}
