//go:build root

package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/observetest"
	"bulkhead/internal/testhost"
)

// What BenchmarkScrapeBesideNodeExporter does: so many rounds, in each so many scrapes of each program. The time
// between two of the same program is that between two samples of an agent, so that each scrape meets a new one.
const (
	scrapeRounds, scrapesEach = 7, 3
	scrapeRhythm              = 5 * time.Second
	fullGroups, fullGroup     = 50, 70 // groups, and figures of each: the most that an answer has

	longestScrape, mostOfNode = 50 * time.Millisecond, 1.0 // the bounds
)

// BenchmarkScrapeBesideNodeExporter is all the CPU time of `bulkhead serve` (user and system, by the scheduler's own
// count), scraped every 5 s with 50 groups of 70 figures, over that of Debian's node_exporter as it is installed, in
// the same seconds, both asked as Prometheus asks, with gzip: the median over the rounds. A second node_exporter is the
// control. What serve uses while nobody scrapes is sitting-ms/s. The agent is a stand-in with a new sample every 5 s;
// what its answers cost is not counted. It runs once, whatever -benchtime says. By the clock 99 of 100 scrapes are to
// end within 50 ms, also with 20 scrapers at once, unless those of node_exporter do not either. The aim is half of
// node_exporter's CPU time, which is not met; more than all of it is an error.
func BenchmarkScrapeBesideNodeExporter(b *testing.B) {
	dir := b.TempDir()
	socket := standInAgent(b, dir)
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	program := filepath.Join(dir, "bulkhead")
	if err := os.Symlink(self, program); err != nil {
		b.Fatal(err)
	}
	serve := startScraped(b, func(port int) *exec.Cmd {
		return exec.Command(program, "serve", "--socket", socket, "--state", dir, "--listen",
			fmt.Sprint("127.0.0.1:", port))
	})
	node := func(port int) *exec.Cmd {
		return exec.Command("prometheus-node-exporter", fmt.Sprint("--web.listen-address=127.0.0.1:", port))
	}
	programs := []*scraped{startScraped(b, node), serve, startScraped(b, node)}
	text := serve.scrape(b)
	if n := strings.Count(text, "\nbulkhead_group_"); n < fullGroups*fullGroup {
		b.Fatalf("an answer has %d figures of groups, want %d", n, fullGroups*fullGroup)
	}
	serve.took = nil
	from := serve.used(b)
	time.Sleep(4 * scrapeRhythm)
	sitting := (serve.used(b) - from) / (4 * scrapeRhythm.Seconds())
	var ratios, control, others, own []float64
	for range scrapeRounds {
		var used [3]float64
		for i, p := range programs {
			used[i] = -p.used(b)
		}
		for range scrapesEach {
			next := time.Now().Add(scrapeRhythm)
			for _, p := range programs {
				p.scrape(b)
			}
			time.Sleep(time.Until(next))
		}
		for i, p := range programs {
			used[i] += p.used(b)
		}
		pair := (used[0] + used[2]) / 2
		ratios, control = append(ratios, used[1]/pair), append(control, used[2]/used[0])
		own, others = append(own, used[1]/scrapesEach), append(others, pair/scrapesEach)
	}
	many := crowd(b, serve.url).p99()
	p99, nodes := serve.p99(), min(programs[0].p99(), programs[2].p99())
	for _, m := range []struct {
		name  string
		value float64
	}{{"ratio", middle(ratios)}, {"control", middle(control)}, {"ms/scrape", 1000 * middle(own)},
		{"node-ms/scrape", 1000 * middle(others)},
		{"sitting-ms/s", 1000 * sitting}, {"p99-ms", 1000 * p99.Seconds()}, {"node-p99-ms", 1000 * nodes.Seconds()},
		{"p99-of-20-ms", 1000 * many.Seconds()},
		{"ns/op", 0}} {
		b.ReportMetric(m.value, m.name)
		b.Logf("%.3f %s", m.value, m.name) // which a benchmark that fails has, too
	}
	switch {
	case max(p99, many) <= longestScrape:
	case nodes > longestScrape:
		b.Logf("99 of 100 scrapes of node_exporter take %v, too: the machine is too busy to tell", nodes)
	default:
		b.Errorf("99 of 100 scrapes take %v, with 20 scrapers at once %v, want %v at most", p99, many, longestScrape)
	}
	if middle(ratios) > mostOfNode {
		b.Errorf("a scrape takes %.2f of the CPU time of one of node_exporter, at most %.1f is the bound",
			middle(ratios), mostOfNode)
	}
}

// p99 is how long a scrape takes by the clock, 99 of 100.
func (p *scraped) p99() time.Duration {
	slices.Sort(p.took)
	return p.took[len(p.took)*99/100]
}

func middle(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// scraped is a program that answers scrapes.
type scraped struct {
	url  string
	pid  int
	took []time.Duration
}

// startScraped starts a program on a free port, and waits until it answers.
func startScraped(b *testing.B, command func(port int) *exec.Cmd) *scraped {
	b.Helper()
	port := testhost.FreePort(b)
	cmd := command(port)
	cmd.Stderr = io.Discard
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	p := &scraped{url: fmt.Sprintf("http://127.0.0.1:%d/metrics", port), pid: cmd.Process.Pid}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		r, err := http.Get(p.url)
		if err == nil {
			_ = r.Body.Close()
			return p
		}
		if time.Now().After(end) {
			b.Fatalf("%s does not answer: %v", cmd.Path, err)
		}
	}
}

// scrape asks as Prometheus 2.42 does, and gives the text.
func (p *scraped) scrape(b *testing.B) string {
	b.Helper()
	text, err := p.ask()
	if err != nil {
		b.Fatal(err)
	}
	return text
}

func (p *scraped) ask() (string, error) {
	r, err := http.NewRequest(http.MethodGet, p.url, http.NoBody)
	if err != nil {
		return "", err
	}
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;"+
		"q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1")
	r.Header.Set("Accept-Encoding", "gzip")
	began := time.Now()
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	zipped, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || answer.Header.Get("Content-Encoding") != "gzip" {
		return "", fmt.Errorf("%s answers %s, %w", p.url, answer.Status, err)
	}
	p.took = append(p.took, time.Since(began))
	unzip, err := gzip.NewReader(bytes.NewReader(zipped))
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(unzip)
	return string(text), err
}

// crowd is how 20 scrapers at once are answered, 15 times each, as TestScrapesAskNoDatabase has them.
func crowd(b *testing.B, url string) *scraped {
	b.Helper()
	all := make([]scraped, 20)
	var wait sync.WaitGroup
	for i := range all {
		all[i].url = url
		wait.Go(func() {
			for range 15 {
				if _, err := all[i].ask(); err != nil {
					b.Error(err)
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	wait.Wait()
	sum := &scraped{}
	for i := range all {
		sum.took = append(sum.took, all[i].took...)
	}
	return sum
}

// used is the CPU time of a program so far, in seconds: that of its threads, none of which ends (Go keeps them).
func (p *scraped) used(b *testing.B) (seconds float64) {
	b.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", p.pid))
	if err != nil || len(files) == 0 {
		b.Fatalf("process %d has no threads: %v", p.pid, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		ran, _, _ := strings.Cut(string(text), " ")
		n, err := strconv.ParseInt(ran, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		seconds += float64(n) / 1e9
	}
	return seconds
}

// standInAgent answers on a socket as an agent with full groups does, and gives its path. It says so of the sample that
// somebody has already, as the agent does.
func standInAgent(b *testing.B, state string) string {
	b.Helper()
	one := observetest.Sample(b)
	groups := one.Groups[:0:0]
	for i := range fullGroups {
		g := one.Groups[0]
		g.Group = fmt.Sprint("mysql", 3306+i)
		for d := range 16 { // which is more than there is room for
			disk := g.Usage.IO[0]
			disk.Device = fmt.Sprintf("300:%d", d)
			g.Usage.IO = append(g.Usage.IO[:len(g.Usage.IO):len(g.Usage.IO)], disk)
		}
		groups = append(groups, g)
	}
	one.Groups, one.Age = groups, 0
	short, err := os.MkdirTemp("", "bh")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(short) })
	socket := filepath.Join(short, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		b.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/hello", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"state": state})
	})
	mux.HandleFunc("GET /v1/samples", func(w http.ResponseWriter, r *http.Request) {
		now := *one
		now.At, now.Every = time.Now().Truncate(scrapeRhythm), scrapeRhythm
		now.Age = time.Since(now.At)
		if r.URL.RawQuery == strings.TrimPrefix(now.Unless(), "?") {
			now = observe.Sample{At: now.At, Age: now.Age, Every: now.Every, Same: true}
		}
		_ = json.NewEncoder(w).Encode(map[string]*observe.Sample{"sample": &now})
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(l) }()
	b.Cleanup(func() { _ = server.Close() })
	return socket
}
