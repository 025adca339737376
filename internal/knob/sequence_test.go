package knob

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/knob/format"
	"bulkhead/internal/linux/idset"
)

// write is a change for a table: "cpu.shares 1024>10240".
func write(t testing.TB, text string) Change {
	t.Helper()
	file, values, _ := strings.Cut(text, " ")
	from, to, ok := strings.Cut(values, ">")
	if !ok {
		t.Fatalf("bad change %q", text)
	}
	return Change{Row: row(t, file), From: from, To: to}
}

// texts writes changes as write reads them.
func texts(changes []Change) []string {
	var list []string
	for _, c := range changes {
		name := c.Row.File
		both := slices.ContainsFunc(table, func(r *Row) bool { return r.File == name && r.Version == 1 })
		if c.Row.Version == 2 && both {
			name = "v2:" + name
		}
		list = append(list, fmt.Sprintf("%s %s>%s", name, c.From, c.To))
	}
	return list
}

func TestSequence(t *testing.T) {
	tests := []struct {
		name         string
		changes      []string
		raise, lower []string
	}{
		{
			name:    "memsw first on the way up",
			changes: []string{"memory.limit_in_bytes 4096>8192", "memory.memsw.limit_in_bytes 4096>12288"},
			raise:   []string{"memory.memsw.limit_in_bytes 4096>12288", "memory.limit_in_bytes 4096>8192"},
		},
		{
			name:    "limit first on the way down",
			changes: []string{"memory.memsw.limit_in_bytes 12288>4096", "memory.limit_in_bytes 8192>4096"},
			lower:   []string{"memory.limit_in_bytes 8192>4096", "memory.memsw.limit_in_bytes 12288>4096"},
		},
		{
			name:    "limit up and memsw down",
			changes: []string{"memory.memsw.limit_in_bytes -1>12288", "memory.limit_in_bytes 4096>8192"},
			raise:   []string{"memory.limit_in_bytes 4096>8192"},
			lower:   []string{"memory.memsw.limit_in_bytes -1>12288"},
		},
		{
			name:    "the same ratio in another period is lifted in between",
			changes: []string{"cpu.cfs_quota_us 50000>5000", "cpu.cfs_period_us 100000>10000"},
			raise: []string{"cpu.cfs_quota_us 50000>-1", "cpu.cfs_period_us 100000>10000",
				"cpu.cfs_quota_us -1>5000"},
		},
		{
			name:    "a raise in a shorter period passes between the two ratios",
			changes: []string{"cpu.cfs_quota_us 50000>100000", "cpu.cfs_period_us 100000>50000"},
			raise:   []string{"cpu.cfs_period_us 100000>50000", "cpu.cfs_quota_us 50000>100000"},
		},
		{
			name:    "a lower limit in a longer period grows the period first",
			changes: []string{"cpu.cfs_quota_us 100000>50000", "cpu.cfs_period_us 50000>100000"},
			lower:   []string{"cpu.cfs_period_us 50000>100000", "cpu.cfs_quota_us 100000>50000"},
		},
		{
			name:    "a raise in a longer period goes over a third quota",
			changes: []string{"cpu.cfs_quota_us 50000>400000", "cpu.cfs_period_us 100000>200000"},
			raise: []string{"cpu.cfs_quota_us 50000>100000", "cpu.cfs_period_us 100000>200000",
				"cpu.cfs_quota_us 100000>400000"},
		},
		{
			name:    "an unlimited quota leaves the period free",
			changes: []string{"cpu.cfs_quota_us -1>5000", "cpu.cfs_period_us 100000>10000"},
			lower:   []string{"cpu.cfs_period_us 100000>10000", "cpu.cfs_quota_us -1>5000"},
		},
		{
			name:    "lifting the quota first frees the period",
			changes: []string{"cpu.cfs_quota_us 5000>-1", "cpu.cfs_period_us 10000>100000"},
			raise:   []string{"cpu.cfs_quota_us 5000>-1", "cpu.cfs_period_us 10000>100000"},
		},
		{
			name:    "a burst above the new quota goes first",
			changes: []string{"cpu.cfs_quota_us 50000>20000", "cpu.cfs_burst_us 50000>10000"},
			lower:   []string{"cpu.cfs_burst_us 50000>10000", "cpu.cfs_quota_us 50000>20000"},
		},
		{
			name:    "a burst above the old quota goes last",
			changes: []string{"cpu.cfs_burst_us 0>50000", "cpu.cfs_quota_us 20000>50000"},
			raise:   []string{"cpu.cfs_quota_us 20000>50000", "cpu.cfs_burst_us 0>50000"},
		},
		{
			name:    "cpu.max disturbs a burst that stays",
			changes: []string{"cpu.max 50000 100000>80000 100000", "cpu.max.burst 20000>20000"},
			raise:   []string{"cpu.max.burst 20000>0", "cpu.max 50000 100000>80000 100000", "cpu.max.burst 0>20000"},
		},
		{
			name:    "cpu.max with a burst that goes",
			changes: []string{"cpu.max 50000 100000>max 100000", "cpu.max.burst 20000>0"},
			raise:   []string{"cpu.max.burst 20000>0", "cpu.max 50000 100000>max 100000"},
		},
		{
			name:    "idle off before the weight",
			changes: []string{"cpu.shares 3>10240", "cpu.idle 1>0"},
			raise:   []string{"cpu.idle 1>0", "cpu.shares 1024>10240"},
		},
		{
			name:    "idle on puts the weight to its default first, for the undo",
			changes: []string{"cpu.shares 10240>3", "cpu.idle 0>1"},
			lower:   []string{"cpu.shares 10240>1024", "cpu.idle 0>1"},
		},
		{
			name:    "no weight while idle stays on",
			changes: []string{"v2:cpu.idle 1>1", "cpu.weight 1>100"},
		},
		{
			name:    "a cpuset that trades CPUs holds both in between",
			changes: []string{"cpuset.cpus 0-1>2-3"},
			raise:   []string{"cpuset.cpus 0-1>0-3"},
			lower:   []string{"cpuset.cpus 0-3>2-3"},
		},
		{
			name:    "the first value of a cpuset",
			changes: []string{"cpuset.cpus >0-1", "cpuset.mems >0"},
			raise:   []string{"cpuset.cpus >0-1", "cpuset.mems >0"},
		},
		{
			name:    "on v2 each cpuset stands for itself",
			changes: []string{"v2:cpuset.cpus 0-1>2-3"},
			raise:   []string{"v2:cpuset.cpus 0-1>2-3"},
		},
		{
			name:    "memory.high before memory.max on the way down, the protection before both",
			changes: []string{"memory.max max>8192", "memory.high max>4096", "memory.low 8192>0"},
			lower:   []string{"memory.low 8192>0", "memory.high max>4096", "memory.max max>8192"},
		},
		{
			name:    "raises before what is lowered",
			changes: []string{"pids.max 100>50", "cpu.shares 1024>2048"},
			raise:   []string{"cpu.shares 1024>2048"},
			lower:   []string{"pids.max 100>50"},
		},
		{
			name: "nothing to do",
			changes: []string{"cpu.shares 1024>1024", "memory.limit_in_bytes -1>-1", "cpu.cfs_quota_us -1>-1",
				"cpu.cfs_burst_us 0>0"},
		},
		{
			name:    "a file that was not read holds its default",
			changes: []string{"cpu.shares >1024", "pids.max >50"},
			lower:   []string{"pids.max max>50"},
		},
	}
	for _, test := range tests {
		var changes []Change
		for _, text := range test.changes {
			changes = append(changes, write(t, text))
		}
		for range 2 { // in the order above, and in the other: it must not matter
			raise, lower := Split(changes)
			if !slices.Equal(texts(raise), test.raise) || !slices.Equal(texts(lower), test.lower) {
				t.Errorf("%s:\n got raise %q\n     lower %q\nwant raise %q\n     lower %q", test.name, texts(raise),
					texts(lower), test.raise, test.lower)
			}
			if got, want := texts(Sequence(changes)), append(slices.Clone(test.raise),
				test.lower...); !slices.Equal(got, want) {
				t.Errorf("%s: Sequence gave %q, want %q", test.name, got, want)
			}
			slices.Reverse(changes)
		}
	}
}

// Values for the property tests: few, so that equal ratios, equal values and bounds come up often.
var (
	somePeriods = []int64{1_000, 10_000, 50_000, 100_000, 200_000, 1_000_000}
	someQuotas  = []int64{-1, -1, 1_000, 5_000, 10_000, 25_000, 50_000, 100_000, 400_000}
)

func drawNumber(t *rapid.T, label string, from []int64) int64 {
	return rapid.OneOf(rapid.SampledFrom(from), rapid.Int64Range(1_000, 1_000_000)).Draw(t, label)
}

// drawState draws one valid state of a directory on its own.
func drawState(t *rapid.T, version int) map[string]string {
	state := map[string]string{}
	b := format.Bandwidth{Quota: drawNumber(t, "quota", someQuotas), Period: drawNumber(t, "period", somePeriods)}
	burst := rapid.Int64Range(0, 200_000).Draw(t, "burst")
	if !b.Unlimited() {
		burst = min(burst, b.Quota)
	}
	idle := rapid.Bool().Draw(t, "idle")
	weight := rapid.SampledFrom([]string{"10", "100", "1000"}).Draw(t, "weight")
	if version == 2 {
		state["cpu.max"], state["cpu.max.burst"] = b.String(), format.Decimal(burst)
		state["cpu.idle"], state["cpu.weight"] = map[bool]string{true: "1", false: "0"}[idle],
			map[bool]string{true: "1", false: weight}[idle]
		return state
	}
	state["cpu.cfs_quota_us"], state["cpu.cfs_period_us"], state["cpu.cfs_burst_us"] = format.Decimal(b.Quota),
		format.Decimal(b.Period),
		format.Decimal(burst)
	state["cpu.idle"], state["cpu.shares"] = map[bool]string{true: "1", false: "0"}[idle],
		map[bool]string{true: format.IdleShares, false: weight + "0"}[idle]
	limit := rapid.SampledFrom([]int64{-1, 0, 4096, 8192, 1 << 30}).Draw(t, "limit")
	both := rapid.SampledFrom([]int64{-1, 4096, 8192, 1 << 30, 1 << 31}).Draw(t, "memsw")
	if both >= 0 && (limit < 0 || limit > both) {
		limit = both
	}
	state["memory.limit_in_bytes"], state["memory.memsw.limit_in_bytes"] = format.Decimal(limit), format.Decimal(both)
	return state
}

// set puts a directory into a state without asking the kernel.
func (m *model) set(state map[string]string) { maps.Copy(m.files, state) }

// holds reports the first file that does not hold what it should.
func (m *model) holds(state map[string]string) error {
	for _, r := range table {
		if want, ok := state[r.File]; ok && r.Version == m.version && !r.Same(want, m.files[r.File]) {
			return fmt.Errorf("%s holds %q, want %q", r.File, m.files[r.File], want)
		}
	}
	return nil
}

func (m *model) run(t *rapid.T, steps []Change) {
	for _, c := range steps {
		if !c.Row.Same(c.From, m.files[c.Row.File]) {
			t.Fatalf("step %s is from %q, but the file holds %q; steps %q", c.Row.File, c.From, m.files[c.Row.File],
				texts(steps))
		}
		if err := m.write(c.Row.File, c.To); err != nil {
			t.Fatalf("%v; steps %q", err, texts(steps))
		}
	}
}

// undo takes steps back one by one.
func undo(steps []Change) []Change {
	back := slices.Clone(steps)
	slices.Reverse(back)
	for i := range back {
		back[i].From, back[i].To = back[i].To, back[i].From
	}
	return back
}

// TestSequenceIsAccepted: between any two states of a directory that the kernel allows, it takes each
// step of the sequence, ends at the target, has nothing left to do then, and takes each step back.
func TestSequenceIsAccepted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		version := rapid.IntRange(1, 2).Draw(t, "version")
		from, to := drawState(t, version), drawState(t, version)
		m := newModel(version, nil)
		m.burstBug = rapid.Bool().Draw(t, "burst bug")
		m.set(from)
		changes := m.changes(to)
		steps := Sequence(rapid.Permutation(changes).Draw(t, "order"))
		m.run(t, steps)
		if err := m.holds(to); err != nil {
			t.Fatalf("at the end %v; steps %q", err, texts(steps))
		}
		if left := Sequence(m.changes(to)); len(left) > 0 {
			t.Fatalf("done, yet %q are left", texts(left))
		}
		m.run(t, undo(steps))
		if err := m.holds(from); err != nil {
			t.Fatalf("undone, %v; steps %q", err, texts(steps))
		}
	})
}

// TestSequenceNeverLeavesTheRange: between a parent that allows no more than the wider of two limits
// and a child that has the narrower one, a CPU limit moves without an error.
func TestSequenceNeverLeavesTheRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := func(label string) format.Bandwidth {
			quotas := someQuotas[2:]
			return format.Bandwidth{Quota: drawNumber(t, label+" quota", quotas),
				Period: drawNumber(t, label+" period", somePeriods)}
		}
		from, to := limit("from"), limit("to")
		low, high := from, to
		if to.Compare(from) < 0 {
			low, high = to, from
		}
		parent := newModel(1, nil)
		m := newModel(1, parent)
		child := newModel(1, m)
		for dir, b := range map[*model]format.Bandwidth{parent: high, m: from, child: low} {
			dir.set(map[string]string{"cpu.cfs_quota_us": format.Decimal(b.Quota),
				"cpu.cfs_period_us": format.Decimal(b.Period)})
		}
		target := map[string]string{"cpu.cfs_quota_us": format.Decimal(to.Quota),
			"cpu.cfs_period_us": format.Decimal(to.Period)}
		steps := Sequence(m.changes(target))
		m.run(t, steps)
		if err := m.holds(target); err != nil {
			t.Fatal(err)
		}
		if len(steps) > 3 {
			t.Fatalf("%d steps: %q", len(steps), texts(steps))
		}
	})
}

// drawTree draws a tree of v1 directories in a valid state: each CPU limit is at most the one above,
// each cpuset part of the one above.
func drawTree(t *rapid.T, root *model, limits map[*model]format.Bandwidth, sets map[*model]idset.Set) {
	for _, m := range root.each() {
		b := format.Bandwidth{Quota: drawNumber(t, "quota", someQuotas), Period: drawNumber(t, "period", somePeriods)}
		above := format.Bandwidth{Quota: -1, Period: 1}
		set := idset.New(rapid.SliceOfN(rapid.IntRange(0, 7), 1, 8).Draw(t, "set")...)
		if m.parent == nil {
			b.Quota, set = -1, idset.New(0, 1, 2, 3, 4, 5, 6, 7)
		} else {
			above = limits[m.parent]
			if set = set.Intersect(sets[m.parent]); len(set) == 0 {
				set = sets[m.parent]
			}
		}
		if !b.Unlimited() && !above.Unlimited() && b.Compare(above) > 0 {
			b = above
		}
		effective := b
		if b.Unlimited() {
			effective = above
		}
		limits[m], sets[m] = effective, set
		m.set(map[string]string{"cpu.cfs_quota_us": format.Decimal(b.Quota),
			"cpu.cfs_period_us": format.Decimal(b.Period),
			"cpuset.cpus":       set.String()})
	}
}

// TestSplitIsAccepted: from any valid tree to any other, first every raise from the top down, then
// the rest from the bottom up, and the kernel takes each write.
func TestSplitIsAccepted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		build := func() *model {
			root := newModel(1, nil)
			a := newModel(1, root)
			newModel(1, newModel(1, a))
			newModel(1, a)
			newModel(1, newModel(1, root))
			return root
		}
		root, target := build(), build()
		drawTree(t, root, map[*model]format.Bandwidth{}, map[*model]idset.Set{})
		drawTree(t, target, map[*model]format.Bandwidth{}, map[*model]idset.Set{})
		dirs, targets := root.each(), target.each()
		lowers := make([][]Change, len(dirs))
		for i, m := range dirs {
			var raise []Change
			raise, lowers[i] = Split(m.changes(targets[i].files))
			m.run(t, raise)
		}
		for i := len(dirs) - 1; i >= 0; i-- {
			dirs[i].run(t, lowers[i])
		}
		for i, m := range dirs {
			if got, want := m.state(), targets[i].state(); got != want {
				t.Fatalf("directory %d ends as\n%s\nwant\n%s", i, got, want)
			}
		}
	})
}
