package load

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/proof"
)

// redisBenchmark loads Redis. It knows a number of requests and no time, so it is told to loop over batches and ended
// when its time is over: its live lines carry the rate and the mean latency, four a second, and at the end of each
// batch it reports every latency with how many answers took no longer. The last batch, which is cut off, is counted and
// is in no histogram.
var redisBenchmark = &loader{
	Programs: []process.Program{{Name: "redis-benchmark", Package: "redis-tools"}},
	endless:  true,
	command: func(d *Driver, _ time.Duration) []string {
		args := []string{d.Path, "-c", strconv.Itoa(d.Threads), "-r", strconv.Itoa(max(d.Rows, 1)), "-l", "-n",
			strconv.Itoa(max(d.batch, firstBatch))}
		script := cmp.Or(d.Script, "get")
		if d.Database.Ours() {
			return append(append(args, "-s", d.Database.Socket, "-t", script), d.Options...)
		}
		if n := d.Database.Number(); n > 0 {
			args = append(args, "--dbnum", strconv.Itoa(n))
		}
		var wrap []string
		switch {
		case d.Database.Account.Password != "":
			socket := d.file("client-of-" + d.Database.Name)
			network, address := d.Database.Place()
			wrap = []string{d.Self, "bench", "forward", "--network=" + network, "--address=" + address, "--account=" +
				d.file(accountFile), "--socket=" + socket, "--"}
			args = append(args, "-s", socket)
		case d.Database.Host != "":
			args = append(args, "-h", d.Database.Host, "-p", strconv.Itoa(d.Database.Port))
		default:
			args = append(args, "-s", d.Database.Socket)
		}
		own := strings.ReplaceAll(OwnCommands[script], "NAME", "client-of-"+d.Database.Name)
		return append(append(append(wrap, args...), d.Options...), strings.Fields(own)...)
	},
	parse: func(d *Driver, r io.Reader, live func(float64)) (Outcome, error) {
		o, err := parseRedis(r, time.Now, live)
		if d.batch == 0 { // warming up says how fast it goes; from then on all arms have the same batches
			d.batch = max(firstBatch, int(o.Rate()*batchTime))
		}
		return o, err
	},
}

// A batch takes a tenth of a second for a database that is alone, so that one of a starved database ends within an arm
// too; what it costs to begin one, a connection for each client, stays small beside it.
const (
	batchTime  = 0.1
	firstBatch = 500
)

// OwnCommands are the scripts of redis-benchmark in a database that exists, on keys of the run's own. The key names the
// database, by which policies know its clients.
var OwnCommands = map[string]string{
	"get": "GET " + database.OwnKeys + "NAME:__rand_int__", "set": "SET " + database.OwnKeys + "NAME:__rand_int__ xxx",
	"incr": "INCR " + database.OwnKeys + "NAME:__rand_int__",
	"sadd": "SADD " + database.OwnKeys + "NAME element:__rand_int__", "hset": "HSET " + database.OwnKeys +
		"NAME field:__rand_int__ xxx",
}

// parseRedis reads live lines, "SET: rps=101234.5 (overall: 100000.1) avg_msec=0.250 (overall: 0.260)", which end in a
// carriage return and come every quarter of a second, and the reports of batches between them. now is the time at which
// a line comes.
func parseRedis(r io.Reader, now func() time.Time, live func(tps float64)) (Outcome, error) {
	lines := bufio.NewScanner(r)
	lines.Split(splitReturns)
	p := redisParser{live: live, tally: tally{}}
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if rps, ok := after(line, "rps="); ok {
			p.tick(rps, line, now())
			continue
		}
		p.report(line)
	}
	if err := lines.Err(); err != nil {
		return Outcome{}, fmt.Errorf("read redis-benchmark's output: %w", err)
	}
	if p.end(); p.outcome.Transactions == 0 || p.outcome.Elapsed <= 0 {
		return Outcome{}, errors.New("read redis-benchmark's output: it reports no rate")
	}
	p.outcome.Histogram = p.tally.buckets()
	return p.outcome, nil
}

// redisParser is how far the output was read.
type redisParser struct {
	outcome     Outcome
	live        func(tps float64)
	tally       tally
	began, last time.Time
	batch       float64 // answers of the batch that goes on, by its live lines
	second      struct {
		from           time.Time
		count          float64
		latency, heard float64 // a sum of means, and of how many answers
	}
	size   int64           // of the batch whose report is read
	upTo   map[int64]int64 // its answers up to a latency in microseconds
	inside bool
}

// tick is a live line: how many a second there were since the last one, of the batch that goes on. What ended with a
// batch in between is known by its report.
func (p *redisParser) tick(rps float64, line string, at time.Time) {
	if p.last.IsZero() {
		p.began, p.last, p.second.from = at, at, at
		return
	}
	n := rps * at.Sub(p.last).Seconds()
	p.last = at
	p.batch += n
	p.second.count += n
	if ms, ok := after(line, "avg_msec="); ok && n > 0 {
		p.second.latency, p.second.heard = p.second.latency+ms*n, p.second.heard+n
	}
	// A little early is the same second: the lines come by redis-benchmark's own clock.
	if at.Sub(p.second.from) >= 900*time.Millisecond {
		p.end()
	}
}

// end ends a second.
func (p *redisParser) end() {
	span := p.last.Sub(p.second.from).Seconds()
	if span <= 0 {
		return
	}
	count := max(p.second.count, 0)
	p.outcome.Transactions += int64(math.Round(count))
	p.outcome.Elapsed = p.last.Sub(p.began)
	if span > 0.5 { // else the last one, which was cut off
		s := proof.Second{At: p.outcome.Elapsed.Seconds(), TPS: count / span,
			Latency: proof.Figure(p.second.latency / p.second.heard)}
		p.outcome.Seconds = append(p.outcome.Seconds, s)
		if p.live != nil {
			p.live(s.TPS)
		}
	}
	p.second.from, p.second.count, p.second.latency, p.second.heard = p.last, 0, 0, 0
}

// report reads a line of a batch's report: "5000 requests completed in 0.10 seconds", then two lists of
// "99.902% <= 0.391 milliseconds (cumulative count 4996)", one by percentile and one by latency, then a summary.
func (p *redisParser) report(line string) {
	var percent, ms float64
	var count int64
	switch {
	case strings.HasPrefix(line, "====== "):
		p.inside, p.size, p.upTo = true, 0, map[int64]int64{}
	case !p.inside:
	case strings.HasPrefix(line, "Summary:"):
		p.inside = false
		p.close()
	default:
		if n, _ := fmt.Sscanf(line, "%d requests completed in", &count); n == 1 && count > 0 &&
			strings.Contains(line, "completed") {
			p.size = count
		} else if n, _ := fmt.Sscanf(line, "%f%% <= %f milliseconds (cumulative count %d)",
			&percent, &ms, &count); n == 3 &&
			finite(ms) && ms < 1e9 && count >= 0 {
			us := int64(math.Round(ms * 1000))
			p.upTo[us] = max(p.upTo[us], count)
		}
	}
}

// close puts a whole batch into the histogram and into the second that goes on.
func (p *redisParser) close() {
	if p.size == 0 {
		return
	}
	p.second.count += float64(p.size) - p.batch
	p.batch = 0
	var before int64
	for _, us := range slices.Sorted(maps.Keys(p.upTo)) {
		if n := min(p.upTo[us], p.size); n > before {
			p.tally.add(float64(us)/1000, n-before)
			before = n
		}
	}
}

// splitReturns makes lines of what ends in a newline or a carriage return.
func splitReturns(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexAny(data, "\r\n"); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// after reads the number behind a word.
func after(line, word string) (float64, bool) {
	_, rest, found := strings.Cut(line, word)
	if !found {
		return 0, false
	}
	text, _, _ := strings.Cut(rest, " ")
	x, err := strconv.ParseFloat(text, 64)
	return x, err == nil && finite(x)
}
