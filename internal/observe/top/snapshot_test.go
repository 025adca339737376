package top

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/observetest"
)

// two gives what is known after two samples, 5 s one after the other, that two functions change.
func two(t *testing.T, first, second func(s *observe.Sample, db *observe.Group)) (before, now *State) {
	t.Helper()
	for i, change := range []func(*observe.Sample, *observe.Group){first, second} {
		s := observetest.Sample(t)
		s.At = s.At.Add(time.Duration(i) * 5 * time.Second)
		s.Groups[0].Limits[3].InForce = true // tasks
		change(s, &s.Groups[0])
		before, now = now, now.NextSample(s, observe.Parts)
	}
	return before, now
}

func same(*observe.Sample, *observe.Group) {}

// The worst that is counted of a group is said, and what alarms alarms in the table, too.
func TestVerdict(t *testing.T) {
	throttled := func(part int64) func(*observe.Sample, *observe.Group) {
		return func(_ *observe.Sample, db *observe.Group) {
			*db.Usage.CPU.Periods += 100
			*db.Usage.CPU.ThrottledPeriods += part
		}
	}
	waiting := func(part int64) func(*observe.Sample, *observe.Group) {
		return func(_ *observe.Sample, db *observe.Group) { db.Usage.Pressure["io"].Some.Total += part * 50_000 }
	}
	all := func(changes ...func(*observe.Sample, *observe.Group)) func(*observe.Sample, *observe.Group) {
		return func(s *observe.Sample, db *observe.Group) {
			for _, c := range changes {
				c(s, db)
			}
		}
	}
	off := func(_ *observe.Sample, db *observe.Group) { db.Limits[3].InForce = false }
	killed := func(_ *observe.Sample, db *observe.Group) { *db.Usage.Memory.OOMKills++ }
	for name, c := range map[string]struct {
		change func(*observe.Sample, *observe.Group)
		group  string
		want   Verdict
	}{
		"nothing":        {same, "mysql3306", Verdict{false, "free", "not held"}},
		"no pressure":    {same, "mysql3306/backup", Verdict{false, "free", "not held by limits"}},
		"a little held":  {throttled(5), "mysql3306", Verdict{false, "held", "held by cpu.limit"}},
		"held":           {throttled(50), "mysql3306", Verdict{true, "held", "held by cpu.limit"}},
		"from above":     {throttled(50), "mysql3306/backup", Verdict{false, "held", "held by cpu.limit of mysql3306"}},
		"waits":          {waiting(40), "mysql3306", Verdict{true, "waits", "waits for disks, 40% of the time"}},
		"waits a little": {waiting(4), "mysql3306", Verdict{false, "waits", "waits for disks, 4% of the time"}},
		"held and waits": {all(throttled(50), waiting(40)), "mysql3306", Verdict{true, "held", "held by cpu.limit"}},
		"off":            {off, "mysql3306", Verdict{true, "wrong", "1 of its limits not in force"}},
		"waits and off": {all(off, waiting(40)), "mysql3306",
			Verdict{true, "waits", "waits for disks, 40% of the time"}},
		"off and a bit": {all(off, waiting(4)), "mysql3306", Verdict{true, "wrong", "1 of its limits not in force"}},
		"killed and held": {all(killed, throttled(50)), "mysql3306",
			Verdict{true, "killed", "processes killed for want of memory"}},
	} {
		_, s := two(t, same, c.change)
		if got := s.Verdict(c.group); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
		for _, r := range (&View{}).Rows(s, Columns) {
			if r.Name == c.group && r.Alarm != c.want.Alarm {
				t.Errorf("%s: the table alarms: %v", name, r.Alarm)
			}
		}
	}
	_, s := two(t, same, throttled(50))
	why := strings.Join(s.Why("mysql3306/backup"), "\n")
	if !strings.Contains(why, "The limit cpu.limit of mysql3306 above it (1.50, of which that uses") ||
		strings.Contains(why, "Its own limit") || strings.Contains(why, "Nothing") {
		t.Errorf("of the limit above it is said\n%s", why)
	}
}

// What happened between two states is said once, and nothing when nothing did.
func TestChanges(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*observe.Sample, *observe.Group)
		want   []string
	}{
		"nothing": {same, nil},
		"a policy": {func(s *observe.Sample, db *observe.Group) {
			s.Revision++
			db.Limits[1].Asked = new(0.75)
			db.Limits[2].Asked = nil
		}, []string{"apply  revision 18 of the policy is in force", "limit mysql3306 cpu.limit 1.50 → 0.75",
			"limit mysql3306 memory.max 8.0G → none"}},
		"a release": {func(s *observe.Sample, _ *observe.Group) { s.Revision = 0 },
			[]string{"apply  everything was released"}},
		"an agent": {func(s *observe.Sample, _ *observe.Group) { s.Agent.Since = s.At },
			[]string{"agent  the agent was started"}},
		"a new one": {func(_ *observe.Sample, db *observe.Group) { db.Group = "other" }, nil},
		"two killed": {func(_ *observe.Sample, db *observe.Group) { *db.Usage.Memory.OOMKills += 2 },
			[]string{"killed mysql3306 processes killed for want of memory: 2"}},
		"a limit off": {func(_ *observe.Sample, db *observe.Group) { db.Limits[3].InForce = false },
			[]string{"wrong mysql3306 limits not in force as asked: 1"}},
		"an override": {func(_ *observe.Sample, db *observe.Group) { db.Overrides = 0 },
			[]string{"override mysql3306 overrides in force: 1 → 0"}},
		"windows": {func(s *observe.Sample, _ *observe.Group) { s.Windows = []string{"evening"} },
			[]string{"window  window evening has opened", "window  window nights has closed"}},
		"a trial that ends well": {func(s *observe.Sample, _ *observe.Group) { s.Agent.Guarded = false },
			[]string{"guard  the guard watches no change any more"}},
		"a trial that is undone": {func(s *observe.Sample, _ *observe.Group) {
			s.Agent.Guarded, s.Agent.Undone = false, s.Agent.Undone+1
		}, []string{"guard  a change on trial was undone: `bulkhead history` says why"}},
		"one that waits": {func(s *observe.Sample, _ *observe.Group) { s.Agent.Confirms = true },
			[]string{"guard  a change waits to be confirmed"}},
		"a missed target": {func(_ *observe.Sample, db *observe.Group) { db.SLO.Slack = new(-0.1) },
			[]string{"slo mysql3306 heartbeat: the target is missed"}},
		"nothing held any more": {func(_ *observe.Sample, db *observe.Group) { db.SLO.Held = nil },
			[]string{"slo mysql3306 no limit of others is lowered for it any more"}},
		"no limits known": {func(s *observe.Sample, db *observe.Group) {
			s.Collectors = slices.DeleteFunc(s.Collectors, func(r observe.Reading) bool {
				return r.Name == observe.Limits
			})
			db.Limits = nil
		}, nil},
	} {
		before, now := two(t, same, c.change)
		var got []string
		for _, change := range Changes(before, now) {
			if !change.At.Equal(now.At) {
				t.Errorf("%s: at %s", name, change.At)
			}
			got = append(got, fmt.Sprintf("%s %s %s", change.Kind, change.Group, change.Text))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// Where the kernel has no PSI of a group, its wait for memory is that of reclaim, as BPF programs count it.
func TestReclaimWithoutPSI(t *testing.T) {
	after := func(limit, host time.Duration) *State {
		var r Reel
		for i := range time.Duration(2) {
			s := observetest.Sample(t)
			s.At = s.At.Add(i * 5 * time.Second)
			s.Groups[0].Usage.Pressure = nil
			s.Groups[0].Reclaim.Limit += i * limit
			s.Groups[0].Reclaim.Host += i * host
			r.AppendSample(s)
		}
		return r.State(1)
	}
	s := after(1500*time.Millisecond, 500*time.Millisecond)
	if got := s.Waits("mysql3306"); len(got.Shown) != 1 || got.Shown["wait_memory"] != "40%" {
		t.Errorf("it waits for %+v", got)
	}
	if got := waits(s, "mysql3306").Text; got != "40%m" {
		t.Errorf("its line says %q", got)
	}
	if v := s.Verdict("mysql3306"); !v.Alarm {
		t.Errorf("it waits for memory, and the verdict is %+v", v)
	}
	if got := waits(after(0, 0), "mysql3306"); got.Known {
		t.Errorf("it may wait for CPUs and disks, and its line says %q", got.Text)
	}
	if got := s.Why("mysql3306")[0]; !strings.HasPrefix(got, "A task of it waits for: memory 40% of the time, as") {
		t.Errorf("it says %q", got)
	}
}
