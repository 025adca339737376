package attribution_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"bulkhead/internal/attribution"
)

// load is a group in a simulation: threads that want to run for a part of the time, in bursts of some ticks, each on
// one CPU, and a quota in ticks of each CPU-period of a hundred; 0 is none.
type load struct {
	threads, burst int
	duty           float64
	quota          int
}

// blamed is how much thread time the victim waited, and for whom.
type blamed struct{ waited, limit, own, others float64 }

// simulate schedules loads on CPUs, one tick after the other: on each CPU the groups that want to run take turns, and
// threads of a group do. It gives what the kernel would count, and what was really waited for. The first load is the
// victim.
func simulate(rng *rand.Rand, cpus int, loads []load) (*attribution.Window, blamed, []float64) {
	const ticks, period = 20_000, 100
	w := &attribution.Window{Host: attribution.Host{CPUs: cpus, EachCPU: map[int]float64{}}}
	type thread struct {
		left int // ticks of its burst
	}
	threads := make([][]thread, len(loads))
	turn := make([][]int, len(loads)) // of threads, by CPU
	ran, used := make([]map[int]float64, len(loads)), make([]int, len(loads))
	for i, l := range loads {
		threads[i], turn[i], ran[i] = make([]thread, l.threads), make([]int, cpus), map[int]float64{}
	}
	last := make([]int, cpus)
	var truth blamed
	var throttled, some float64
	each := make([]float64, len(loads))
	for tick := range ticks {
		if tick%period == 0 {
			clear(used)
		}
		for i, l := range loads {
			for j := range threads[i] {
				if t := &threads[i][j]; t.left == 0 && rng.Float64() < l.duty/float64(l.burst)/(1.001-l.duty) {
					t.left = l.burst
				}
			}
		}
		for cpu := range cpus {
			runs, who := -1, -1
			wants := func(i int) (n int) {
				for j := cpu; j < len(threads[i]); j += cpus {
					if threads[i][j].left > 0 {
						n++
					}
				}
				return n
			}
			held := func(i int) bool { return loads[i].quota > 0 && used[i] >= loads[i].quota }
			for k := range loads {
				if i := (last[cpu] + 1 + k) % len(loads); wants(i) > 0 && !held(i) {
					runs = i
					break
				}
			}
			if runs >= 0 {
				last[cpu] = runs
				n := (len(threads[runs]) - cpu + cpus - 1) / cpus
				for k := range n {
					if j := cpu + (turn[runs][cpu]+1+k)%n*cpus; threads[runs][j].left > 0 {
						who = j
						turn[runs][cpu] = (turn[runs][cpu] + 1 + k) % n
						break
					}
				}
				ran[runs][cpu]++
				used[runs]++
			}
			waiting := float64(wants(0))
			if held(0) && waiting > 0 {
				throttled++
				truth.limit += waiting
			} else if runs == 0 {
				waiting--
				truth.own += waiting
			} else if runs > 0 {
				truth.others += waiting
				each[runs] += waiting
			}
			if waiting > 0 {
				some += 1 / float64(cpus)
			}
			truth.waited += waiting
			if who >= 0 {
				threads[runs][who].left--
			}
		}
	}
	for i, l := range loads {
		g := attribution.Group{Name: fmt.Sprintf("g%d", i), EachCPU: map[int]float64{}, Threads: float64(l.threads)}
		sum := 0.0
		for cpu, n := range ran[i] {
			g.EachCPU[cpu] = n / ticks
			sum += n / ticks
			w.Host.EachCPU[cpu] += n / ticks
		}
		g.CPU = &sum
		w.Groups = append(w.Groups, g)
	}
	v := &w.Groups[0]
	v.Waited, v.Throttled = new(truth.waited/ticks), throttled/ticks
	v.Pressure = map[string]float64{"cpu": some / ticks}
	for i := range each {
		each[i] /= ticks
	}
	return w, blamed{truth.waited / ticks, truth.limit / ticks, truth.own / ticks, truth.others / ticks}, each
}

// On simulated CPUs it is known who ran while the victim waited. Of random cases with one guilty of four neighbours the
// guilty is first in nearly all, nobody is named where all are idle, and the parts are near what they were.
func TestAgainstSimulation(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 29))
	const cases = 120
	guilty, idle, named, off := 0, 0, 0, 0.0
	for n := range cases {
		cpus := 1 + n%2
		loads := []load{{threads: 1 + rng.IntN(6), burst: 1 + rng.IntN(20), duty: 0.1 + 0.8*rng.Float64()}}
		if n%3 == 0 {
			loads[0].quota = 10 + rng.IntN(40)
		}
		for range 4 {
			loads = append(loads, load{threads: 1, burst: 1 + rng.IntN(3), duty: 0.002 + 0.004*rng.Float64()})
		}
		bad := n%4 != 3
		at := 1 + rng.IntN(4)
		if bad {
			loads[at] = load{threads: cpus * (1 + rng.IntN(4)), burst: 5 + rng.IntN(50), duty: 0.5 + 0.49*rng.Float64()}
		}
		w, truth, each := simulate(rng, cpus, loads)
		r, err := attribution.Of(w, "g0")
		if err != nil {
			t.Fatal(err)
		}
		one := r.Resources[0]
		var others, limit float64
		first := ""
		for _, row := range one.Rows {
			switch row.Who {
			case attribution.Other:
				others += row.Seconds
				if first == "" {
					first = row.Group
				}
			case attribution.OwnLimit:
				limit += row.Seconds
			}
		}
		t.Logf("%d CPUs, %+v: waited %.3f; limit %.3f, was %.3f; others %.3f, was %.3f; %s (%d, %.3f)", cpus, loads[0],
			truth.waited, limit, truth.limit, others, truth.others, first, at, each[at])
		off += math.Abs(others-truth.others) / max(truth.waited, 0.02)
		switch {
		case !bad:
			idle++
			if len(r.Suspects) > 0 && r.Suspects[0].Who == attribution.Other {
				named++
			}
		case first == fmt.Sprintf("g%d", at):
			guilty++
		}
	}
	t.Logf("the guilty was first in %d of %d, somebody was named in %d of %d, and the part of others is off by "+
		"%.0f %% of what was waited on average", guilty, cases-idle, named, idle, 100*off/cases)
	if guilty < (cases-idle)*95/100 || named > idle/20 || off/cases > 0.15 {
		t.Error("that is too bad")
	}
}
