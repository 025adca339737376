package prove

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/advise/proved"
	"bulkhead/internal/api"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
)

// fake is a host with one setting, and a database whose speed depends on it.
type fake struct {
	t       *testing.T
	log     []string
	set     bool
	waits   time.Time // of the change on trial
	steps   int       // that the change would take
	with    float64   // transactions with the setting, without it there are 1000
	during  func(n int) error
	apart   string
	without int // measurements so far without it
	none    bool
	trouble func(verb string) error
}

func (f *fake) do(ctx context.Context, q api.Request) (*api.Reply, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r := &api.Reply{Plan: plan.Plan{Steps: make([]plan.Step, f.steps)}}
	r.Notes = []string{"a note"}
	if q.DryRun {
		f.log = append(f.log, "?")
		return r, nil
	}
	if f.trouble != nil {
		if err := f.trouble(q.Verb); err != nil {
			return nil, err
		}
	}
	switch {
	case q.Verb == "rollback" && q.Waits.Equal(f.waits) && f.set && !f.waits.IsZero():
		f.log, f.set, f.waits = append(f.log, "-"), false, time.Time{}
	case q.Verb == "tune apply" && !f.set && q.ConfirmWithin > 0:
		f.waits = time.Unix(int64(len(f.log)), 0)
		f.log, f.set, r.Confirm = append(f.log, "+"), true, f.waits
		if q.ConfirmWithin < time.Minute || !strings.HasPrefix(q.Reason, "why, round ") {
			f.t.Errorf("a turn waits for %s, with reason %q", q.ConfirmWithin, q.Reason)
		}
	case q.Verb == "tune apply" && !f.set:
		f.log, f.set = append(f.log, "kept"), true
	default:
		f.t.Errorf("asked for %+v when it is set: %v", q, f.set)
	}
	return r, nil
}

func (f *fake) Open(ctx context.Context, do func(context.Context, Subject) error) error {
	f.log = append(f.log, "(")
	defer func() { f.log = append(f.log, ")") }()
	return do(ctx, Subject{Text: "a fake", Idle: "nobody works", Rows: rowsOf([]string{"client"}), Longest: time.Second,
		Apart: func(string) string { return f.apart },
		Measure: func(_ context.Context, _ string, done, of int) (proved.Sample, error) {
			if f.during != nil {
				if err := f.during(done); err != nil {
					return nil, err
				}
			}
			if f.set {
				f.log = append(f.log, "B")
				return proved.Sample{"client.tps": f.with, "client.p50": 1, "client.p99": 2}, nil
			}
			f.log, f.without = append(f.log, "A"), f.without+1
			if f.none {
				return proved.Sample{"client.tps": 0, "client.p50": 1, "client.p99": 2}, nil
			}
			return proved.Sample{"client.tps": 1000 + float64(f.without%2), "client.p50": 1, "client.p99": 2}, nil
		}})
}

func request() api.Request {
	return api.Request{Verb: "tune apply", Reason: "why",
		Tune: []state.Tuned{{Rule: "MEM-01", Name: "vm.swappiness", Value: "1"}}}
}

// What is worse is taken back, what is better or makes no difference is kept, and each is said.
func TestRun(t *testing.T) {
	for _, tt := range []struct {
		with              float64
		kept              bool
		verdict, by, says string
	}{
		{800, false, proved.Worse, "-20.0 %", "worse"},
		{1200, true, proved.Better, "+19.9 %", "better beyond the noise: the change is kept"},
		{1000.5, true, proved.NoDifference, "+0.0 %",
			"no difference beyond the noise: the change is kept, `bulkhead tune rollback` takes it back"},
	} {
		f := &fake{t: t, steps: 1, with: tt.with}
		r, err := Run(t.Context(), f.do, f, request(), 7, 10)
		if err != nil {
			t.Fatal(err)
		}
		want := "?(" + strings.Repeat("A+B-", 7) + "A)"
		if tt.kept {
			want += "kept"
		}
		if log := strings.Join(f.log, ""); log != want || r.Kept != tt.kept || f.set != tt.kept ||
			r.Verdict != tt.verdict || !f.waits.IsZero() || (r.Reply != nil) != tt.kept || len(r.Notes) > 0 {
			t.Errorf("%v: it went %s, %+v", tt.with, log, r)
		}
		var out bytes.Buffer
		r.Print(&out)
		for _, part := range []string{tt.says + "\n", "a fake: 7 rounds of 10 s", "  vm.swappiness = 1\n",
			"client, transactions", "p99 latency", tt.by} {
			if !strings.Contains(out.String(), part) {
				t.Errorf("%v: %q is not in\n%s", tt.with, part, &out)
			}
		}
		var back map[string]any
		text, err := json.Marshal(r)
		if err == nil {
			err = json.Unmarshal(text, &back)
		}
		if err != nil || back["verdict"] != tt.verdict || back["kept"] != tt.kept || back["rounds"] != 7.0 ||
			len(back["figures"].([]any)) != 3 || len(back["samples"].([]any)) != 15 {
			t.Errorf("%v: as JSON %s, %v", tt.with, text, err)
		}
	}
	f := &fake{t: t, steps: 1, with: 1}
	if r, err := Run(t.Context(), f.do, f, request(), 2, 10); err != nil || len(r.Notes) != 1 ||
		!strings.HasPrefix(r.Notes[0], "fewer than 7 rounds") {
		t.Errorf("two rounds: %+v, %v", r, err)
	}
}

// A database that does nothing while it is measured proves nothing, and the change is not in force.
func TestRunWithoutWork(t *testing.T) {
	f := &fake{t: t, steps: 1, with: 0, none: true}
	if r, err := Run(t.Context(), f.do, f, request(), 7, 10); err == nil ||
		!strings.Contains(err.Error(), "nobody works") || f.set {
		t.Errorf("%+v, %v", r, err)
	}
}

// Interrupted or broken in any measurement, the change is not in force afterwards, and that is said.
func TestRunEndsEarly(t *testing.T) {
	for at := range 5 {
		ctx, cancel := context.WithCancelCause(t.Context())
		f := &fake{t: t, steps: 1, with: 2000}
		f.during = func(n int) error {
			if n == at {
				cancel(process.ErrInterrupted)
				return context.Cause(ctx)
			}
			return nil
		}
		_, err := Run(ctx, f.do, f, request(), 2, 10)
		if !errors.Is(err, process.ErrInterrupted) || f.set || !strings.Contains(api.HintOf(err), "not in force") {
			t.Errorf("interrupted in measurement %d: %v (%s), set %v", at, err, api.HintOf(err), f.set)
		}
	}
}

// A change that stays is not said to be taken back.
func TestRunCannotTakeBack(t *testing.T) {
	f := &fake{t: t, steps: 1, with: 2000, trouble: func(verb string) error {
		if verb == "rollback" {
			return errors.New("no answer")
		}
		return nil
	}}
	_, err := Run(t.Context(), f.do, f, request(), 2, 10)
	if !errors.Is(err, proved.ErrStays) || !strings.Contains(api.HintOf(err), "`bulkhead rollback` does so now") {
		t.Errorf("%v, hint %s", err, api.HintOf(err))
	}
}

// What cannot be measured is refused before anything is changed; of several settings one that shows is enough.
func TestRefused(t *testing.T) {
	boot := request()
	boot.Tune[0].Name = "kernel psi"
	for want, tt := range map[string]struct {
		f fake
		q api.Request
	}{
		"counts when the host boots next":    {fake{steps: 1}, boot},
		"would change nothing: a note":       {fake{}, request()},
		"nothing of the change would show: ": {fake{steps: 1, apart: "it is elsewhere"}, request()},
	} {
		tt.f.t = t
		_, err := Run(t.Context(), tt.f.do, &tt.f, tt.q, 7, 10)
		if err == nil || !strings.Contains(err.Error(), want) ||
			api.HintOf(err) == "" || slices.Contains(tt.f.log, "+") || slices.Contains(tt.f.log, "A") {
			t.Errorf("%s: %v, it went %v", want, err, tt.f.log)
		}
	}
	r := &Result{}
	two := request()
	two.Tune = append(two.Tune, state.Tuned{Name: "mount /data/atime"})
	of := Subject{Apart: func(name string) string { return ofMount(name, "/var") }}
	if err := r.reach(of, two); err != nil ||
		!slices.Equal(r.Notes, []string{"mount /data/atime is not measured: the database lies on /var"}) {
		t.Errorf("%v, %v", err, r.Notes)
	}
}

// Whether a setting shows depends on where the database lies.
func TestApart(t *testing.T) {
	h := tunable.Host{Root: sysroot.New(t.TempDir())}
	for name, apart := range map[string]bool{"unit db.service/LimitNOFILE": true, "vm.swappiness": false,
		"/sys/kernel/mm/ksm/run": false, "vm.nr_hugepages": true,
		"/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages": true} {
		got := ofService(name) + ofPool(name) + ofMount(name, "/") + ofDisk(h, name, []string{"vda"})
		if (got != "") != apart {
			t.Errorf("%s: %q", name, got)
		}
	}
	if ofMount("mount /data/atime", "/data") != "" || ofMount("mount /discard", "/") != "" ||
		ofMount("mount /discard", "/data") == "" {
		t.Error("mounts are told apart by their place")
	}
	mine := func(file string) bool { return file == "/pg1/conf.d/zz-bulkhead.conf" }
	for name, apart := range map[string]string{"vm.swappiness": "",
		"option /pg1/conf.d/zz-bulkhead.conf/fsync":            "",
		"option /pg2/conf.d/zz-bulkhead.conf/fsync":            "is measured does not read /pg2/conf.d",
		"option /etc/mysql/conf.d/zz-bulkhead.cnf/sync_binlog": "when it starts"} {
		if got := ofOption(name, mine); (got == "") != (apart == "") || !strings.Contains(got, apart) {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := ofOption("option /pg1/conf.d/zz-bulkhead.conf/fsync", nil); !strings.Contains(got, "throw-away") {
		t.Error(got)
	}
}

// A load that did nothing with the change did worse than one that did something, and not nothing that is known.
func TestIdle(t *testing.T) {
	did := func(sample proved.Sample) proved.Sample { return withIdle(sample, []string{"client"}) }
	n := 0
	turns := proved.Turns{Rounds: 2, Rows: rowsOf([]string{"client"}),
		Measure: func(context.Context, string, int) (proved.Sample, error) {
			if n++; n == 2 || n == 4 {
				return did(proved.Sample{}), nil
			}
			return did(proved.Sample{"client.tps": 1000, "client.p50": 1, "client.p99": 2}), nil
		},
		Apply: func(context.Context, int) error { return nil }, Undo: func(context.Context, int) error { return nil }}
	if r, err := turns.Run(t.Context()); err != nil || r.Verdict != proved.Worse || r.Figures[0].After != 0 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A window counts what the database did in it, and one that began anew is an error.
func TestWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := int64(100)
		s, err := window(t.Context(), func(context.Context) (int64, error) {
			time.Sleep(3 * time.Millisecond)
			n += 50
			return n, nil
		}, time.Second)
		if err != nil || math.Round(s["work"]) != 490 || // 10 of 500 are its own questions
			s["p50"] != 3 || s["p99"] != 3 {
			t.Errorf("%v, %v", s, err)
		}
		s, err = window(t.Context(), func(context.Context) (int64, error) { n++; return n, nil }, time.Second)
		if err != nil || s["work"] != 0 {
			t.Errorf("one that answers and does nothing else: %v, %v", s, err)
		}
		_, err = window(t.Context(), func(context.Context) (int64, error) { n -= 50; return n, nil }, time.Second)
		if err == nil || !strings.Contains(err.Error(), "started anew") {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := window(ctx, func(context.Context) (int64, error) { return 1, nil }, time.Hour); err == nil {
			t.Error("it went on after its end")
		}
	})
}
