package load

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"bulkhead/internal/bench/neighbour"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/proof"
)

// fio loads a disk: it writes or reads a file that was laid out before. It tells its state every second, as JSON.
var fio = &loader{
	Programs: []process.Program{{Name: "fio", Package: "fio"}},
	fill: func(_ context.Context, d *Driver) error {
		if _, err := os.Stat(d.file("data")); err == nil {
			return nil
		}
		return neighbour.PrepareFile(d.file("data"), int64(max(d.Size, 16))<<20)
	},
	command: func(d *Driver, length time.Duration) []string {
		direct := "1"
		if d.Buffered {
			direct = "0"
		}
		return append([]string{
			d.Path, "--name=" + d.Name, "--filename=" + d.file("data"), "--rw=" + cmp.Or(d.Script, "write"), "--bs=" +
				cmp.Or(d.Block, "1M"),
			"--size=" + strconv.Itoa(max(d.Size, 16)) + "M", "--direct=" + direct, "--numjobs=" +
				strconv.Itoa(max(d.Jobs, 1)), "--iodepth=" + strconv.Itoa(max(d.Depth, 1)),
			"--ioengine=psync", "--time_based", "--runtime=" + strconv.Itoa(int(length/time.Second)),
			"--group_reporting", "--thread",
			"--overwrite=1", "--status-interval=1", "--output-format=json+", "--eta=never",
		}, d.Options...)
	},
	parse: func(_ *Driver, r io.Reader, live func(float64)) (Outcome, error) { return parseFio(r, live) },
}

// fioSide is reading or writing in fio's JSON.
type fioSide struct {
	Bytes   int64   `json:"io_bytes"`
	Ops     int64   `json:"total_ios"`
	Runtime float64 `json:"runtime"` // milliseconds
	Latency struct {
		Mean float64          `json:"mean"`
		Bins map[string]int64 `json:"bins"`
	} `json:"clat_ns"`
}

// parseFio reads one JSON document a second, each with all since the start, and one at the end.
func parseFio(r io.Reader, live func(tps float64)) (Outcome, error) {
	decoder := json.NewDecoder(r)
	var o Outcome
	var last fioSide
	for {
		var report struct {
			Jobs []struct {
				Read  fioSide `json:"read"`
				Write fioSide `json:"write"`
				Error int     `json:"error"`
			} `json:"jobs"`
		}
		err := decoder.Decode(&report)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return Outcome{}, fmt.Errorf("read fio's output: %w", err)
		}
		if len(report.Jobs) != 1 {
			return Outcome{}, fmt.Errorf("read fio's output: %d jobs, want them reported as one", len(report.Jobs))
		}
		now := report.Jobs[0].Write
		if report.Jobs[0].Read.Ops > now.Ops {
			now = report.Jobs[0].Read
		}
		// The last report may come right behind that of its second.
		if span := now.Runtime - last.Runtime; span >= 500 {
			s := proof.Second{At: now.Runtime / 1000, TPS: float64(now.Ops-last.Ops) / (span / 1000),
				Latency: proof.Figure(meanBetween(last, now))}
			o.Seconds = append(o.Seconds, s)
			if live != nil {
				live(s.TPS)
			}
			last = now
		}
		o.Transactions, o.Elapsed = now.Ops, time.Duration(now.Runtime*float64(time.Millisecond))
		if now.Runtime > 0 {
			o.bytes = float64(now.Bytes) / (now.Runtime / 1000)
		}
		t := tally{}
		for ns, count := range now.Latency.Bins {
			n, err := strconv.ParseFloat(ns, 64)
			if err != nil || !finite(n) || count < 0 {
				return Outcome{}, fmt.Errorf("read fio's output: latency %q ns, %d times", ns, count)
			}
			t.add(n/1e6, count)
		}
		o.Histogram = t.buckets()
	}
	if o.Elapsed <= 0 || len(o.Histogram) == 0 {
		return Outcome{}, errors.New("read fio's output: it ended without a report")
	}
	return o, nil
}

// meanBetween is the mean latency of what was done from one report to the next, in milliseconds.
func meanBetween(a, b fioSide) float64 {
	ops := float64(b.Ops - a.Ops)
	return (b.Latency.Mean*float64(b.Ops) - a.Latency.Mean*float64(a.Ops)) / ops / 1e6
}
