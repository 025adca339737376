package switches

import (
	"fmt"
	"io"
	"slices"
	"strconv"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/linux/ctxswitch"
	"bulkhead/internal/switches"
)

// view is what the verb says.
type view struct {
	Report   *switches.Report  `json:"counted"`
	Maximum  *switches.Maximum `json:"maximum,omitempty"`
	Verdicts map[string]string `json:"verdicts"` // of the switches for each query, by instance
	Warnings []string          `json:"warnings"`
}

// only leaves what is of one instance.
func (v *view) only(name string) {
	other := func(u switches.Use) bool { return u.Instance != name }
	v.Report.Procs = render.OrEmpty(slices.DeleteFunc(v.Report.Procs, other))
	v.Report.Servers = slices.DeleteFunc(v.Report.Servers, func(u switches.Use) bool { return u.Name != name })
	v.Report.Queries = slices.DeleteFunc(v.Report.Queries, func(q switches.Queries) bool { return q.Instance != name })
}

// most is how many processes are shown.
const most = 15

func rate(f float64) string { return fmt.Sprintf("%.0f", f) }

func share(c ctxswitch.Count) string {
	if c.All() == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(c.Involuntary)/float64(c.All()))
}

// printHost prints what is of the whole machine.
func printHost(out io.Writer, v *view) {
	r := v.Report
	render.Printf(out, "%s switches a second for each CPU, counted for %.1f s on the whole host\n", rate(r.PerCPU),
		r.Span.Seconds())
	switch {
	case v.Maximum == nil:
		render.Println(out, "the maximum of these CPUs is not known: `bulkhead switches --measure-maximum` measures it")
	case v.Maximum.Stale == "":
		render.Printf(out, "%.1f %% of the maximum, %s, measured %s\n", 100*r.PerCPU/v.Maximum.Rate,
			rate(v.Maximum.Rate), v.Maximum.When.Format("2006-01-02"))
	}
	render.Println(out)
	if len(r.CPUs) > 0 {
		rows := [][]string{{"CPU", "SWITCHES/S"}}
		for _, c := range r.CPUs {
			rows = append(rows, []string{strconv.Itoa(c.ID), rate(c.Rate)})
		}
		render.Table(out, rows)
	}
}

func printUses(out io.Writer, title string, all []switches.Use, pids bool) {
	head := []string{title, "SWITCHES/S", "VOLUNTARY", "INVOLUNTARY", "INVOLUNTARY SHARE"}
	if pids {
		head = append([]string{"PID"}, head...)
	}
	rows := [][]string{head}
	for _, u := range all {
		row := []string{u.Name, rate(u.Rate), strconv.FormatUint(u.Count.Voluntary, 10),
			strconv.FormatUint(u.Count.Involuntary, 10), share(u.Count)}
		if pids {
			pid := "ended"
			if u.PID > 0 {
				pid = strconv.Itoa(u.PID)
			}
			row = append([]string{pid}, row...)
		}
		rows = append(rows, row)
	}
	if len(rows) > 1 {
		render.Table(out, rows)
	}
}

func printQueries(out io.Writer, v *view) {
	for _, q := range v.Report.Queries {
		if q.PerQuery > 0 {
			render.Printf(out, "%s: %.1f switches for each of %d %s; %s\n", q.Instance, q.PerQuery, q.Done, q.Counter,
				v.Verdicts[q.Instance])
		} else {
			render.Printf(out, "%s: switches for each of its %s: %s\n", q.Instance, q.Counter, v.Verdicts[q.Instance])
		}
	}
}

func printNotes(out io.Writer, v *view) {
	for _, w := range v.Warnings {
		render.Printf(out, "warning: %s\n", w)
	}
	for _, n := range v.Report.Notes {
		render.Printf(out, "note: %s\n", n)
	}
}

func printAll(out io.Writer, v *view) {
	printHost(out, v)
	printUses(out, "DATABASE", v.Report.Servers, true)
	printUses(out, "GROUP", v.Report.Groups, false)
	printUses(out, "PROCESS", v.Report.Procs[:min(most, len(v.Report.Procs))], true)
	if more := len(v.Report.Procs) - most; more > 0 {
		render.Printf(out, "and %s; --json has all\n", render.Count(more, "process", "processes"))
	}
	printQueries(out, v)
	printNotes(out, v)
}

func printInstance(out io.Writer, v *view, name string) {
	printHost(out, v)
	printUses(out, "DATABASE", v.Report.Servers, true)
	printUses(out, "PROCESS", v.Report.Procs, true)
	printQueries(out, v)
	if len(v.Report.Queries) == 0 {
		render.Printf(out, "--dsn %s=@FILE asks the server for its queries, and tells the switches for each\n", name)
	}
	printNotes(out, v)
}

func printMaximum(out io.Writer, m *switches.Maximum) {
	rows := [][]string{{"THREADS", "SWITCHES/S FOR EACH CPU", "OF THE CPUS' TIME"}}
	for _, s := range m.Steps {
		of := rate(s.Rate)
		if s.Rate == 0 {
			of = "too little time to tell"
		}
		rows = append(rows, []string{strconv.Itoa(s.Threads), of, fmt.Sprintf("%.0f %%", 100*s.Share)})
	}
	render.Table(out, rows)
	render.Printf(out, "maximum: %s switches a second for each CPU, at %d threads; `bulkhead switches` warns "+
		"above %s\n", rate(m.Rate), m.Threads, rate(switches.ShareOfMaximum*m.Rate))
	render.Printf(out, "kept for: Linux %s, %s, %d CPUs\n", m.Machine.Kernel, m.Machine.CPU, m.Machine.CPUs)
}
