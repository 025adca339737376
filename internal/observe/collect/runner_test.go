package collect

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/observe"
)

// Each tier reads on its own clock; readings that meet are in one sample, which names what is new in it.
func TestTiers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.start(Choice{})
		s.pass(2*time.Minute + time.Second)
		for p, want := range map[observe.Part]int{observe.CPU: 25, observe.Memory: 13, observe.MemoryStat: 3} {
			if len(s.read[p]) != want {
				t.Errorf("%s has read %d times, want %d", p, len(s.read[p]), want)
			}
		}
		if len(s.samples) != 25 {
			t.Errorf("there are %d samples", len(s.samples))
		}
		for i, one := range s.samples {
			want := usual()
			if len(one.told) != len(want) {
				t.Errorf("sample %d has the figures of %v", i, one.told)
			}
			want = slices.DeleteFunc(want, func(p observe.Part) bool {
				every := 5 * time.Second
				for _, c := range observe.Collectors {
					if c.Name == p {
						every = c.Tier.Every(false)
					}
				}
				return time.Duration(i)*5*time.Second%every != 0
			})
			if !slices.Equal(one.fresh, want) {
				t.Errorf("new in sample %d is %v, want %v", i, one.fresh, want)
			}
		}
		if age := s.reading(observe.MemoryStat).Age; age != time.Second {
			t.Errorf("the age of the last reading is %v", age)
		}
	})
}

// One that is switched on reads at once, and from then on with the others: there are no more samples than before.
func TestSwitchedOnInBetween(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		begun := time.Now()
		s.start(Choice{})
		for _, verb := range []Verb{Disable, Enable} {
			s.pass(3 * time.Second)
			if err := s.r.Change(Change{Verb: verb, Names: []string{"memory"}}); err != nil {
				t.Fatal(err)
			}
		}
		s.pass(25 * time.Second)
		at := []time.Duration{}
		for _, read := range s.read[observe.Memory] {
			at = append(at, read.Sub(begun)/time.Second)
		}
		if !slices.Equal(at, []time.Duration{0, 6, 10, 20, 30}) {
			t.Errorf("it has read at these seconds: %d", at)
		}
	})
}

// A hundred random changes, with ends and with names that nobody knows: each is in effect at once, an unknown name
// changes nothing, an end comes when it was said to, all with the same runner, and whoever is on all the time reads
// without a gap.
func TestRandomChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 2)) // the same each time
		s := newSite(t)
		s.start(Choice{})
		want := map[observe.Part]bool{}
		ends := map[observe.Part]time.Time{} // of switches of limited duration
		forGood := map[observe.Part]bool{}
		for _, p := range observe.Parts {
			want[p], forGood[p] = !p.Asked(), !p.Asked()
		}
		settle := func() {
			for p, at := range ends {
				if !at.After(time.Now()) {
					delete(ends, p)
					want[p] = forGood[p]
				}
			}
		}
		for i := range 100 {
			s.pass(time.Duration(random.Int64N(int64(20 * time.Second))))
			settle()
			names, known := []string{}, []observe.Part{}
			for range 1 + random.IntN(3) {
				p := observe.Parts[1+random.IntN(len(observe.Parts)-1)] // cpu stays on
				names, known = append(names, string(p)), append(known, p)
			}
			c := Change{Verb: []Verb{Enable, Disable, Set}[random.IntN(3)]}
			if random.IntN(2) == 0 {
				c.For = time.Duration(1+random.Int64N(60)) * time.Second
			}
			if c.Verb == Set {
				names, known = append(names, "cpu"), append(known, observe.CPU)
			}
			if c.Names = names; random.IntN(2) == 0 {
				c.Names = append(c.Names, "no_such")
				var unknown *UnknownError
				if err := s.r.Change(c); !errors.As(err, &unknown) {
					t.Fatalf("change %d: %v", i, err)
				}
			} else if err := s.r.Change(c); err != nil {
				t.Fatal(err)
			} else {
				for _, p := range observe.Parts {
					named := slices.Contains(known, p)
					switch {
					case c.Verb != Set && !named:
						continue
					case c.For > 0:
						ends[p] = time.Now().Add(c.For)
					default:
						delete(ends, p)
						forGood[p] = named && c.Verb != Disable
					}
					want[p] = named && c.Verb != Disable
				}
			}
			s.pass(2 * time.Second)
			settle()
			on := []observe.Part{}
			for _, p := range observe.Parts {
				if want[p] {
					on = append(on, p)
				}
			}
			if got := s.on(); !slices.Equal(got, on) {
				t.Fatalf("after change %d, %+v, these are on: %v, want %v", i, c, got, on)
			}
			if got := s.samples[len(s.samples)-1].told; !slices.Equal(got, on) {
				t.Fatalf("after change %d, %+v, the sample has %v, want %v", i, c, got, on)
			}
		}
		for i, gap := range s.gaps(observe.CPU) {
			if gap != 5*time.Second {
				t.Errorf("between readings %d and %d of cpu there are %v", i, i+1, gap)
			}
		}
		if n := len(s.read[observe.CPU]); n < 100 {
			t.Errorf("cpu has read %d times", n)
		}
		// A switch that ends does so within a second of its time, also while nothing else happens.
		for p, at := range ends {
			s.pass(time.Until(at) - time.Second)
			if _, there := ends[p]; there && s.reading(p).On != want[p] {
				t.Errorf("%s changed a second before its end", p)
			}
			s.pass(2 * time.Second)
			settle()
			if s.reading(p).On != want[p] {
				t.Errorf("%s has not changed a second after its end", p)
			}
		}
	})
}

// What was switched, and until when, is the same after a restart.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := newSite(t)
		first.start(Choice{})
		for _, c := range []Change{{Verb: Set, Names: []string{"cpu", "io"}},
			{Verb: Enable, Names: []string{"memory"}, For: time.Minute},
			{Verb: Disable, Names: []string{"io"}, For: time.Hour}} {
			if err := first.r.Change(c); err != nil {
				t.Fatal(err)
			}
		}
		first.end()
		second := newSite(t)
		second.start(first.kept)
		if got := second.on(); !slices.Equal(got, []observe.Part{observe.CPU, observe.Memory}) {
			t.Errorf("after a restart %v are on", got)
		}
		second.pass(time.Minute)
		if got := second.on(); !slices.Equal(got, []observe.Part{observe.CPU}) {
			t.Errorf("a minute later %v are on", got)
		}
		second.pass(time.Hour)
		if got := second.on(); !slices.Equal(got, []observe.Part{observe.CPU, observe.IO}) {
			t.Errorf("an hour later %v are on", got)
		}
		if err := second.r.Change(Change{Verb: Reset}); err != nil || !slices.Equal(second.on(), usual()) {
			t.Errorf("after a reset %v are on: %v", second.on(), err)
		}
		second.saves = errors.New("no space left on device")
		if err := second.r.Change(Change{Verb: Disable, Names: []string{"cpu"}}); err == nil ||
			!slices.Equal(second.on(), usual()) {
			t.Errorf("a change that cannot be kept is made: %v", err)
		}
	})
}

// A collector that hangs is skipped and says so; the others read on time, and its old figures are not shown as new.
func TestHangingCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.start(Choice{})
		s.pass(7 * time.Second)
		s.hang[observe.IO] = make(chan struct{})
		s.pass(time.Minute)
		for _, p := range []observe.Part{observe.CPU, observe.Pressure} {
			for _, gap := range s.gaps(p) {
				if gap != 5*time.Second {
					t.Errorf("between two readings of %s there are %v", p, gap)
				}
			}
		}
		at := s.reading(observe.IO)
		if at.Skipped != 11 || at.Waiting != 57*time.Second || at.Told || s.r.Last().Skipped != 11 {
			t.Errorf("of the one that hangs it says %+v", at)
		}
		if last := s.r.Last(); last.Has(observe.IO) || !last.Has(observe.CPU) || last.Age > 5*time.Second {
			t.Errorf("the sample has io, or lacks cpu, or is %v old", last.Age)
		}
		if n := strings.Count(s.log.String(), "takes too long"); n != 1 {
			t.Errorf("said %d times: %s", n, &s.log)
		}
		close(s.hang[observe.IO])
		delete(s.hang, observe.IO)
		s.pass(6 * time.Second)
		if at := s.reading(observe.IO); at.Waiting != 0 || !at.Told || !s.r.Last().Has(observe.IO) {
			t.Errorf("of the one that reads again it says %+v", at)
		}
		s.fail[observe.IO] = errors.New("no such disk")
		s.pass(time.Minute)
		if at := s.reading(observe.IO); at.Error != "no such disk" || at.Told {
			t.Errorf("of the one that fails it says %+v", at)
		}
		if n := strings.Count(s.log.String(), "no such disk"); n != 1 {
			t.Errorf("said %d times: %s", n, &s.log)
		}
	})
}

// A collector that uses more than its budget three times in a row reads half as often, and no other does.
func TestBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.cost[observe.CPU] = 11 * time.Millisecond
		s.cost[observe.Memory] = 19 * time.Millisecond
		s.start(Choice{})
		s.pass(11 * time.Second)
		at := s.reading(observe.CPU)
		if at.Slower != 2 || at.Every != 10*time.Second || at.Used != 11*time.Millisecond {
			t.Errorf("after three readings: %+v", at)
		}
		if !strings.Contains(s.log.String(), "more CPU than it may") {
			t.Errorf("the log says %s", &s.log)
		}
		s.cost[observe.CPU] = 0
		s.pass(5 * time.Minute)
		for p, want := range map[observe.Part]time.Duration{observe.CPU: 10 * time.Second,
			observe.Memory: 10 * time.Second, observe.Stat: 5 * time.Second} {
			if at := s.reading(p); at.Every != want {
				t.Errorf("%s reads every %v", p, at.Every)
			}
		}
		for _, verb := range []Verb{Disable, Enable} { // somebody wants it
			if err := s.r.Change(Change{Verb: verb, Names: []string{"cpu"}}); err != nil {
				t.Fatal(err)
			}
			s.pass(time.Second)
		}
		if at := s.reading(observe.CPU); at.Every != 5*time.Second {
			t.Errorf("switched on again, it reads every %v", at.Every)
		}
		s.cost[observe.CPU] = time.Second
		s.pass(10 * time.Minute)
		if at := s.reading(observe.CPU); at.Slower != slowest {
			t.Errorf("however much it costs, it reads %d times as seldom", at.Slower)
		}
	})
}

// While the host is hot the quick ones read every second, and a minute later no more.
func TestHot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.start(Choice{})
		s.pass(12 * time.Second)
		before, slow := len(s.read[observe.CPU]), len(s.read[observe.Memory])
		s.r.warm()
		s.pass(30 * time.Second)
		if n := len(s.read[observe.CPU]) - before; n != 30 || !s.r.Last().Hot || s.r.Last().Every != time.Second {
			t.Errorf("in 30 s it has read %d times, every %v", n, s.r.Last().Every)
		}
		if n := len(s.read[observe.Memory]) - slow; n != 3 {
			t.Errorf("the others have read %d times", n)
		}
		s.pass(30 * time.Second)
		before = len(s.read[observe.CPU])
		s.pass(30 * time.Second)
		if n := len(s.read[observe.CPU]) - before; n > 7 || s.r.Last().Hot {
			t.Errorf("after a minute it has read %d times in 30 s", n)
		}
	})
}

// Figures that were in time when they were read are in a sample that is taken a moment after it became hot.
func TestHotBetweenReadings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.start(Choice{})
		s.pass(4500 * time.Millisecond)
		s.r.warm()
		if err := s.r.Change(Change{Verb: Disable, Names: []string{"memory"}}); err != nil {
			t.Fatal(err)
		}
		s.pass(time.Millisecond)
		if last := s.r.Last(); last.Has(observe.Memory) || !last.Has(observe.CPU) {
			t.Errorf("after 4.5 s the sample has %+v", last.Collectors)
		}
	})
}

// A collector that panics fails, and the others go on.
func TestPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.panics = observe.IO
		s.start(Choice{})
		s.pass(11 * time.Second)
		if at := s.reading(observe.IO); !strings.Contains(at.Error, "no such line") || at.Told {
			t.Errorf("of the one that panics it says %+v", at)
		}
		if len(s.read[observe.CPU]) != 3 {
			t.Errorf("another has read %d times", len(s.read[observe.CPU]))
		}
	})
}

// While a change waits for the disk on which it is kept, collectors read and the last sample is given.
func TestSlowDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.start(Choice{})
		s.disk = make(chan struct{})
		done := make(chan error)
		go func() { done <- s.r.Change(Change{Verb: Disable, Names: []string{"memory"}}) }()
		s.pass(11 * time.Second)
		if last := s.r.Last(); last.Age > 5*time.Second || !last.Has(observe.Memory) || len(s.read[observe.CPU]) != 3 {
			t.Errorf("the last sample is %v old, cpu has read %d times", last.Age, len(s.read[observe.CPU]))
		}
		close(s.disk)
		if err := <-done; err != nil {
			t.Error(err)
		}
		s.pass(time.Millisecond)
		if s.r.Last().Has(observe.Memory) {
			t.Error("the change is not in effect")
		}
	})
}

// Without a collector there still is a sample, so that nobody takes the agent for dead.
func TestNoCollector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t)
		s.start(Choice{Set: []observe.Part{}})
		s.pass(25 * time.Second)
		if last := s.r.Last(); last == nil || len(last.Collectors) != 0 || last.Age > usually || len(s.read) != 0 {
			t.Errorf("the last sample is %+v, and %v have read", last, slices.Sorted(maps.Keys(s.read)))
		}
	})
}
