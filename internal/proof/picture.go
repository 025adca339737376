package proof

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Pictures are the plots of a result by name, as SVG.
func (r *Result) Pictures() map[string]string {
	pictures := map[string]string{
		"rate":    r.ratePlot().svg(),
		"latency": r.latencyPlot().svg(),
		"arms":    r.barChart("transactions per second", "tps", "/s"),
	}
	if r.hasFigure("isolation") {
		pictures["isolation"] = r.barChart("isolation: of being alone in the same round", "isolation", "%")
	}
	for _, f := range []struct{ name, title, unit string }{{"cpu", "CPU", "cores"}, {"memory", "memory", "MiB"},
		{"swap", "swap", "MiB"}, {"written", "written", "MiB/s"}} {
		if p := r.usePlot(f.name, f.title, f.unit); len(p.lines) > 0 {
			pictures["use-"+f.name] = p.svg()
		}
	}
	if p := freePlot(r); len(p.lines) > 0 {
		pictures["memory-free"] = p.svg()
	}
	maps.Copy(pictures, matrixPlots(r))
	return pictures
}

// swaps says whether a shape judges what is swapped: how that and free memory went on over time is shown then.
func swaps(r *Result) bool {
	return slices.ContainsFunc(r.Shape, func(f Finding) bool { return strings.Contains(f.Measure, ".swap") })
}

func (r *Result) hasFigure(name string) bool {
	return slices.ContainsFunc(r.Arms, func(a Arm) bool { _, found := a.Figures[name]; return found })
}

// ratePlot is the rate over time: the median of the rounds, with the band from the lowest to the highest.
func (r *Result) ratePlot() plot {
	p := plot{title: "transactions in each second: median of the rounds, from the lowest to the highest",
		xTitle: "seconds since the load began", yTitle: "per second"}
	for i := range r.Arms {
		l := line{name: r.Arms[i].Text, colour: i, low: []float64{}, high: []float64{}}
		seconds := map[int][]float64{}
		for _, round := range r.Arms[i].Rounds {
			for _, s := range round.Seconds {
				seconds[int(math.Round(s.At))] = append(seconds[int(math.Round(s.At))], s.TPS)
			}
			if len(p.marks) == 0 {
				p.marks = round.Phases
			}
		}
		for at := range r.Seconds + 3 {
			if len(seconds[at]) == 0 {
				continue
			}
			o := Over(seconds[at])
			l.x, l.y = append(l.x, float64(at)), append(l.y, float64(o.Median))
			l.low, l.high = append(l.low, float64(o.Low)), append(l.high, float64(o.High))
		}
		if len(l.x) > 0 {
			p.lines = append(p.lines, l)
		}
	}
	return p
}

// latencyPlot is which part of the answers took longer than so long: a latency curve up to the 99.9th percentile.
func (r *Result) latencyPlot() plot {
	p := plot{title: "latency: percent of the answers within so many milliseconds", xTitle: "milliseconds",
		yTitle: "percent", logX: true}
	for i := range r.Arms {
		l := line{name: r.Arms[i].Text, colour: i}
		var total, seen int64
		for _, b := range r.Arms[i].Histogram {
			total += b.Count
		}
		for _, b := range r.Arms[i].Histogram {
			seen += b.Count
			share := float64(seen) / float64(total) * 100
			l.x, l.y = append(l.x, b.MS), append(l.y, share)
			if share > 99.95 {
				break
			}
		}
		if len(l.x) > 0 {
			p.lines = append(p.lines, l)
		}
	}
	return p
}

func (r *Result) barChart(title, figure, unit string) string {
	var all []bar
	for i := range r.Arms {
		if a := &r.Arms[i]; a.Omitted == "" {
			value, found := a.Figures[figure]
			if !found {
				value = Range{Figure(nan), Figure(nan), Figure(nan)}
			}
			all = append(all, bar{a.Text, value})
		}
	}
	return bars(title, unit, all)
}

// freePlot is the memory of the machine that nobody used over the last round, arm by arm.
func freePlot(r *Result) plot {
	p := plot{title: "memory that is free, MiB, in the last round", xTitle: "seconds since the load began",
		yTitle: "MiB"}
	for i := range r.Arms {
		a := &r.Arms[i]
		if len(a.Rounds) == 0 || a.Name == "again" {
			continue
		}
		l := line{name: a.Text, colour: i}
		for _, s := range a.Rounds[len(a.Rounds)-1].Host {
			if s.Free > 0 { // a result of before it was kept has none
				l.x, l.y = append(l.x, s.At), append(l.y, float64(s.Free)/(1<<20))
			}
		}
		if len(l.x) > 0 {
			p.lines = append(p.lines, l)
		}
	}
	return p
}

// usePlot is what groups and databases used over the last round, arm by arm.
func (r *Result) usePlot(figure, title, unit string) plot {
	p := plot{title: fmt.Sprintf("%s, %s, of groups and databases in the last round", title, unit),
		xTitle: "seconds since the load began", yTitle: unit}
	for i := range r.Arms {
		a := &r.Arms[i]
		if len(a.Rounds) == 0 || a.Name == "again" {
			continue
		}
		last := a.Rounds[len(a.Rounds)-1]
		var names []string
		for name := range last.Groups {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			l := line{name: a.Text + ": " + name, colour: len(p.lines)}
			some := false
			for _, s := range last.Groups[name] {
				y := map[string]float64{"cpu": float64(s.CPU), "memory": float64(s.Memory) / (1 << 20),
					"swap": float64(s.Swap) / (1 << 20), "written": float64(s.Written) / (1 << 20)}[figure]
				l.x, l.y = append(l.x, s.At), append(l.y, y)
				some = some || y > 0.01
			}
			if some {
				p.lines = append(p.lines, l)
			}
		}
	}
	return p
}
