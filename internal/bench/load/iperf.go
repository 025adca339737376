package load

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/proof"
)

// iperf3 sends over the wire: a transaction is a Mbit that arrived, the rate of a second is what was sent in it. Its
// server runs from the set-up to the end of the run; the client has the load's time.
var iperf3 = &loader{
	Programs: []process.Program{{Name: "iperf3", Package: "iperf3"}},
	beside:   startIperfServer,
	command: func(d *Driver, length time.Duration) []string {
		addr, port := d.listener()
		jobs := max(d.Jobs, 1)
		args := []string{
			d.Path, "--client", addr, "--port", port, "--time", strconv.Itoa(int(length / time.Second)), "--interval",
			"1", "--format", "k",
			"--forceflush", "--parallel", strconv.Itoa(jobs),
		}
		if d.Rate > 0 {
			args = append(args, "--bitrate", strconv.Itoa(int(d.Rate)*1000/jobs)+"K")
		}
		return append(args, d.Options...)
	},
	parse: func(d *Driver, r io.Reader, live func(float64)) (Outcome, error) {
		return parseIperf(r, d.Jobs > 1, live)
	},
}

// startIperfServer starts the end that the client asks, and waits until it listens.
func startIperfServer(ctx context.Context, d *Driver) error {
	at := d.Far
	if d.Flow == FlowIn {
		at = d.Supervisor
	}
	addr, port := d.listener()
	said := &watcher{word: []byte("listening"), seen: make(chan struct{})}
	var err error
	d.Server, err = at.Start(process.Spec{Args: []string{d.Path, "--server", "--bind", addr, "--port", port,
		"--forceflush"}, Session: true, Stdout: said, Stderr: said})
	if err != nil {
		return err
	}
	select {
	case <-said.seen:
		return nil
	case <-d.Server.Done:
		return fmt.Errorf("start iperf3's server: %w\n%s", d.Server.Err, process.LastLines(said.text(), 5))
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// watcher keeps the begin of what a program says, and tells when a word is in it.
type watcher struct {
	word []byte
	seen chan struct{}

	mu   sync.Mutex
	kept bytes.Buffer
	told bool
}

// maxKept is more than a server says before it listens or fails.
const maxKept = 4 << 10

// Write never fails.
func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.kept.Len() < maxKept {
		w.kept.Write(p)
	}
	if !w.told && bytes.Contains(w.kept.Bytes(), w.word) {
		w.told = true
		close(w.seen)
	}
	return len(p), nil
}

func (w *watcher) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kept.String()
}

// parseIperf reads iperf3's lines: "[ 5] 0.00-1.00 sec 12.0 MBytes 100650 Kbits/sec 0 1.12 MBytes". Of several
// connections the sum counts. The line that ends in "receiver" is what arrived.
func parseIperf(r io.Reader, several bool, live func(tps float64)) (Outcome, error) {
	var o Outcome
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		from, to, mbit, ok := iperfLine(line, several)
		switch {
		case !ok, strings.HasSuffix(line, "sender"):
		case strings.HasSuffix(line, "receiver"):
			o.Elapsed = time.Duration((to - from) * float64(time.Second))
			o.Transactions, o.bytes = int64(mbit*(to-from)+0.5), mbit*1e6/8
		case to-from > 0.5: // the last one may be a rest
			o.Seconds = append(o.Seconds, proof.Second{At: to, TPS: mbit, Latency: proof.Figure(math.NaN())})
			if live != nil {
				live(mbit)
			}
		}
	}
	if err := lines.Err(); err != nil {
		return Outcome{}, fmt.Errorf("read iperf3's output: %w", err)
	}
	if o.Elapsed <= 0 {
		return Outcome{}, errors.New("read iperf3's output: it ended without saying what arrived")
	}
	return o, nil
}

// iperfLine reads a line with an interval in seconds and a rate; sum wants that of all connections.
func iperfLine(line string, sum bool) (from, to, mbit float64, ok bool) {
	head, rest, found := strings.Cut(line, "]")
	if !found || !strings.HasPrefix(head, "[") || (head == "[SUM") != sum {
		return 0, 0, 0, false
	}
	words := strings.Fields(rest) // 0.00-1.00 sec 12.0 MBytes 100650 Kbits/sec …
	if len(words) < 6 || words[1] != "sec" || words[5] != "Kbits/sec" {
		return 0, 0, 0, false
	}
	begin, end, _ := strings.Cut(words[0], "-")
	from, err1 := strconv.ParseFloat(begin, 64)
	to, err2 := strconv.ParseFloat(end, 64)
	kbit, err3 := strconv.ParseFloat(words[4], 64)
	return from, to, kbit / 1000, errors.Join(err1, err2, err3) == nil && finite(from) && finite(kbit) && to > from &&
		to < 1e6
}

// listener is the address at which the end of a load listens that its client asks.
func (d *Driver) listener() (addr, port string) {
	addr = FarAddr
	if d.Flow == FlowIn {
		addr = NearAddr
	}
	return addr, strconv.Itoa(d.Port)
}
