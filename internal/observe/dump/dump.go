// Package dump writes what was recorded in formats that other programs read: OpenMetrics, JSON lines, CSV.
//
// Names, types and helps are those of observe.Table. Nothing here keeps anything.
package dump

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/metrics"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
)

// Formats are the formats that Write knows.
var Formats = []string{"openmetrics", "json", "csv"}

// Write reads segments and writes what they have between two times, both included. Where a part of them is damaged it
// writes the others, and the error is record.ErrDamaged.
func Write(w io.Writer, format string, segments io.Reader, from, to time.Time) error {
	out := bufio.NewWriter(w)
	var err error
	switch format {
	case "openmetrics":
		err = openMetrics(out, segments, from, to, Most)
	case "json":
		err = lines(out, segments, from, to)
	case "csv":
		err = table(out, segments, from, to)
	default:
		err = fmt.Errorf("there is no format %q", format)
	}
	return errors.Join(err, out.Flush())
}

// Most is how many figures OpenMetrics is written of: they have to be sorted, and are kept in memory for that, with 10
// bytes each.
const Most = 20_000_000

// ErrTooMany says that there are more.
var ErrTooMany = fmt.Errorf("OpenMetrics has to be sorted, and here it may have %d million figures", Most/1_000_000)

// labels gives names to the values of a key's labels. A metric that this version does not know has numbers for them.
func labels(metric string, values []string) (names []string) {
	if r := observe.RowOf(metric); r != nil {
		names = r.AllLabels()
	}
	for i := len(names); i < len(values); i++ {
		names = append(names[:i:i], fmt.Sprint("label_", i+1))
	}
	return names[:len(values)]
}

// openMetrics writes the text format of OpenMetrics 1.0, with times, metric by metric, of so many figures at most.
func openMetrics(w *bufio.Writer, segments io.Reader, from, to time.Time, most int) error {
	columns := map[record.Key][]func(func(time.Time, float64)){} // in the segments that have it
	n := 0
	damaged := record.Segments(segments, from, to, func(s *record.Segment) error {
		if n += s.Values; n > most {
			return ErrTooMany
		}
		s.Columns(func(key record.Key, each func(func(time.Time, float64))) {
			columns[key] = append(columns[key], each)
		})
		return nil
	})
	if damaged != nil && !errors.Is(damaged, record.ErrDamaged) {
		return damaged
	}
	last := ""
	for _, key := range slices.Sorted(maps.Keys(columns)) {
		metric, values := key.Split()
		if metric != last {
			last = metric
			family(w, metric)
		}
		name := metric + braces(labels(metric, values), values)
		var before time.Time
		for _, each := range columns[key] {
			each(func(at time.Time, value float64) {
				if at.Before(from) || at.After(to) || !at.After(before) {
					return // outside, or the clock was set back
				}
				before = at
				_, _ = fmt.Fprintf(w, "%s %s %s\n", name, number(value), seconds(at))
			})
		}
	}
	_, err := w.WriteString("# EOF\n")
	return errors.Join(damaged, err)
}

// family begins a metric.
func family(w *bufio.Writer, metric string) {
	name, kind, help := metric, metrics.Gauge, ""
	if short, is := strings.CutSuffix(metric, "_total"); is {
		name, kind = short, metrics.Counter
	}
	if r := observe.RowOf(metric); r != nil {
		help = r.Help
	}
	_, _ = fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, escape(help), name, kind)
}

// braces are labels as both formats have them.
func braces(names, values []string) string {
	if len(values) == 0 {
		return ""
	}
	pairs := make([]string, len(values))
	for i, v := range values {
		pairs[i] = names[i] + `="` + escape(v) + `"`
	}
	return "{" + strings.Join(pairs, ",") + "}"
}

var escapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func escape(text string) string { return escapes.Replace(strings.ToValidUTF8(text, "\uFFFD")) }

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

// seconds is a time as OpenMetrics has it, to the millisecond.
func seconds(at time.Time) string {
	return strconv.FormatFloat(float64(at.UnixMilli())/1000, 'f', 3, 64)
}

// line is a tick as JSON.
type line struct {
	At      time.Time `json:"at"`
	Figures []figure  `json:"figures"`
}

type figure struct {
	Metric string            `json:"metric"`
	Labels map[string]string `json:"labels,omitempty"`
	Value  float64           `json:"value"`
}

// lines writes a JSON object for each tick, with what was read then, each in a line.
func lines(w *bufio.Writer, segments io.Reader, from, to time.Time) error {
	out := json.NewEncoder(w)
	return record.Walk(segments, from, to, func(t record.Tick) error {
		one := line{At: t.At, Figures: []figure{}}
		for _, p := range t.Parts {
			for _, f := range p.Figures {
				if math.IsNaN(f.Value) || math.IsInf(f.Value, 0) {
					continue // JSON has no such number
				}
				metric, values := f.Key.Split()
				named := map[string]string{}
				for i, name := range labels(metric, values) {
					named[name] = values[i]
				}
				one.Figures = append(one.Figures, figure{metric, named, f.Value})
			}
		}
		return out.Encode(one)
	})
}

// table writes a line for each figure: when, which, and its value.
func table(w *bufio.Writer, segments io.Reader, from, to time.Time) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"time", "metric", "labels", "value"})
	err := record.Walk(segments, from, to, func(t record.Tick) error {
		at := t.At.Format("2006-01-02T15:04:05.000Z07:00")
		for _, p := range t.Parts {
			for _, f := range p.Figures {
				metric, values := f.Key.Split()
				of := strings.Trim(braces(labels(metric, values), values), "{}")
				if err := out.Write([]string{at, metric, of, number(f.Value)}); err != nil {
					return err
				}
			}
		}
		return nil
	})
	out.Flush()
	return errors.Join(err, out.Error())
}
