package observing

import (
	"fmt"
	"maps"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/observe/top"
)

// histogramFor is the time that a histogram is of by default, and shortHistogram the shortest: databases are asked
// every 10 s.
const histogramFor, shortHistogram = 5 * time.Minute, 20 * time.Second

// longestLook is for how long a look may last: one that is longer spans a gap of the record.
const longestLook = 2 * time.Minute

// Histogram is how long the statements of a group's database took between two times, and how long the group waited.
type Histogram struct {
	Group string    `json:"group"`
	From  time.Time `json:"from"` // of the readings
	To    time.Time `json:"to"`
	Total Responses `json:"total"`
	// Rows are those response times with calls, the shortest first; nil where no server tells.
	Rows    []Responses  `json:"rows"`
	Waiting *top.Waiting `json:"waiting,omitempty"`
}

// Responses are calls with about the same response time.
type Responses struct {
	Over    float64  `json:"over_seconds"`
	UpTo    *float64 `json:"up_to_seconds,omitempty"` // nil: no bound
	Calls   float64  `json:"calls"`
	Seconds float64  `json:"seconds"` // all of them together
}

// histogram is the verb that shows how many statements took how long, and how long groups waited.
func (s Session) histogram() *cobra.Command {
	var file, at string
	var span time.Duration
	c := &cobra.Command{
		Use:   "histogram GROUP",
		Short: "how many statements took how long, and how long a group waited, now and in the past",
		Long: `histogram shows how many statements of a database took how long, and how much of the time of all
statements these are, as the server itself counts it: MySQL 8 (performance_schema), MariaDB with its plugin
query_response_time, Redis 7 and Valkey. PostgreSQL does not count it. A mean hides what this shows: that most calls are
quick, and few slow ones take most of the time. The agent asks each database every 10 s that the policy gives a dsn for
(guard: {groups: {INSTANCE: {dsn: …}}}).

Of any group it shows how long its threads waited for a CPU each time, and for how much of the time a task of it waited
for CPU, memory or disks. The kernel counts sums, which the agent reads again and again: of each look the mean is known,
and it is shown how many looks had which. How long a single wait was nobody knows.

All of it is read from the record.`,
		Example: `  bulkhead histogram mysql3306                          the last 5 minutes
  bulkhead histogram reports --at 02:10 --for 1m        the minute before 02:10
  bulkhead histogram mysql3306 --at 02:10 --file incident`,
		Args: usage.Exactly(1, "say of which group: histogram GROUP"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if span < shortHistogram || span > 24*time.Hour {
				return usage.Errorf(cmd, "--for is from %s to 24h", shortHistogram)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			end := at
			if end == "" {
				end = "0s"
			}
			waiting := top.NewWaiting(args[0], longestLook)
			var state *top.State
			before, after, err := s.recorded(ctx, cmd, file, end, span, func(t record.Tick, begin time.Time) {
				if state = state.Next(t); t.At.After(begin) {
					waiting.Add(state)
				}
			})
			if err != nil {
				return err
			}
			h, err := histogramBetween(before, after, args[0])
			if err != nil && waiting.To.IsZero() {
				return err
			}
			if err != nil {
				h = &Histogram{Group: args[0], From: waiting.From, To: waiting.To}
			}
			if !waiting.To.IsZero() {
				h.Waiting = waiting
			}
			return s.Print(h, func() { s.printHistogram(h) })
		},
	}
	c.Flags().StringVar(&at, "at", "", "until this `time`: 02:10, 2026-11-20 02:10, 90m for 90 minutes ago; now "+
		"without it")
	c.Flags().DurationVar(&span, "for", histogramFor, "of this long before it")
	fileFlag(c, &file)
	return c
}

// bucket is what was counted of one range of response times.
type bucket struct{ calls, seconds float64 }

// histogramBetween makes the histogram of what was counted between two readings.
func histogramBetween(before, after record.Tick, group string) (*Histogram, error) {
	h := &Histogram{Group: group, Rows: []Responses{}}
	was, from := bucketsOf(before, group)
	is, to := bucketsOf(after, group)
	h.From, h.To = from, to
	if len(is) == 0 || from.IsZero() || !to.After(from) {
		return nil, &api.Error{Code: api.CodeFailed,
			Err: fmt.Errorf("neither response times nor waits of %s are recorded between these times", group),
			Hint: "`bulkhead collectors` shows whether `threads` and `pressure` are on; response times are counted " +
				"where the policy has `guard: {groups: {" + group + ": {throughput_falls: 50%, " +
				"dsn: …}}}` and the server counts them"}
	}
	again := false // the server began to count anew
	for upTo, n := range was {
		again = again || is[upTo].calls < n.calls
	}
	over := 0.0
	for _, upTo := range slices.Sorted(maps.Keys(is)) {
		r := Responses{Over: over, Calls: is[upTo].calls, Seconds: is[upTo].seconds}
		if !again {
			r.Calls -= was[upTo].calls
			r.Seconds = max(0, r.Seconds-was[upTo].seconds)
		}
		if !math.IsInf(upTo, 1) {
			r.UpTo = new(upTo)
		}
		over = upTo
		if r.Calls > 0 {
			h.Rows = append(h.Rows, r)
			h.Total.Calls += r.Calls
			h.Total.Seconds += r.Seconds
		}
	}
	return h, nil
}

// bucketsOf gives what a tick knows of the response times of a group, by their upper bounds, and when it was read.
func bucketsOf(t record.Tick, group string) (all map[float64]bucket, read time.Time) {
	all = map[float64]bucket{}
	for _, p := range t.Parts {
		if p.Name != observe.Databases {
			continue
		}
		read = p.Read
		for _, f := range p.Figures {
			metric, labels := f.Key.Split()
			if metric != observe.StatementCalls && metric != observe.StatementSeconds || len(labels) != 4 ||
				labels[0] != group {
				continue
			}
			upTo, err := strconv.ParseFloat(labels[3], 64)
			if err != nil {
				continue
			}
			b := all[upTo]
			if metric == observe.StatementCalls {
				b.calls = f.Value
			} else {
				b.seconds = f.Value
			}
			all[upTo] = b
		}
	}
	return all, read
}

func (s Session) printHistogram(h *Histogram) {
	render.Printf(s.Out, "%s, from %s to %s\n\n", h.Group, moment(h.From), moment(h.To))
	switch {
	case h.Total.Calls > 0:
		s.printStatements(h)
	case h.Rows != nil || h.Waiting == nil:
		render.Printf(s.Out, "No statement ended in that time.\n\n")
	}
	if h.Waiting != nil {
		s.printWaiting(h.Waiting)
	}
}

// printStatements prints how long statements took.
func (s Session) printStatements(h *Histogram) {
	rows := [][]string{{"TOOK", "CALLS", "OF CALLS", "OF TIME", "MEAN", ""}}
	row := func(what string, r Responses) {
		part := r.Calls / h.Total.Calls
		ofTime := 0.0
		if h.Total.Seconds > 0 {
			ofTime = r.Seconds / h.Total.Seconds
		}
		rows = append(rows, []string{what, strconv.FormatFloat(r.Calls, 'f', 0, 64), fmt.Sprintf("%.1f %%", 100*part),
			fmt.Sprintf("%.1f %%", 100*ofTime), took(r.Seconds / r.Calls), bar(part)})
	}
	for _, r := range h.Rows {
		if r.UpTo == nil {
			row("over "+took(r.Over), r)
			continue
		}
		row("up to "+took(*r.UpTo), r)
	}
	row("all", h.Total)
	rows[len(rows)-1][5] = ""
	render.Table(s.Out, rows)
}

// took writes a time in seconds with three digits and the unit that fits.
func took(seconds float64) string {
	for _, u := range []struct {
		unit string
		of   float64
	}{{"s", 1}, {"ms", 1e-3}} {
		if seconds >= u.of {
			return strconv.FormatFloat(seconds/u.of, 'g', 3, 64) + " " + u.unit
		}
	}
	return strconv.FormatFloat(seconds*1e6, 'g', 3, 64) + " µs"
}

// bar is a bar for a part of all calls, 30 characters for all of them.
func bar(part float64) string { return strings.Repeat("#", int(math.Ceil(30*part))) }
