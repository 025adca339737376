//go:build root

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/testhost"
)

// prometheus is a server of Debian's package that runs the shipped configuration.
type prometheus struct {
	port int
	log  string
}

// startPrometheus has one scrape a port of this host, as examples/monitoring says otherwise.
func (s *site) startPrometheus(scraped int) *prometheus {
	s.t.Helper()
	p := &prometheus{port: testhost.FreePort(s.t), log: filepath.Join(s.dir, "prometheus.log")}
	shipped := func(name string) string {
		text, err := os.ReadFile(filepath.Join("../../examples/monitoring", name))
		if err != nil {
			s.t.Fatal(err)
		}
		return string(text)
	}
	config := shipped("prometheus.yml")
	here := strings.Replace(config, ":9786", fmt.Sprint(":", scraped), 1)
	if here == config {
		s.t.Fatalf("no port 9786 in\n%s", config)
	}
	dir := s.t.TempDir()
	for name, text := range map[string]string{"prometheus.yml": here,
		"bulkhead-alerts.yml": shipped("bulkhead-alerts.yml")} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			s.t.Fatal(err)
		}
	}
	log, err := os.Create(p.log)
	if err != nil {
		s.t.Fatal(err)
	}
	cmd := exec.Command(testhost.Program(s.t, "prometheus", "/usr/bin/prometheus"),
		"--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"),
		fmt.Sprint("--web.listen-address=127.0.0.1:", p.port))
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); _ = log.Close() })
	return p
}

// value is that of a query that has one; NaN is none.
func (p *prometheus) value(query string) (float64, error) {
	r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/api/v1/query?query=%s", p.port, url.QueryEscape(query)))
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	var a struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	if err := json.NewDecoder(r.Body).Decode(&a); err != nil {
		return 0, err
	}
	if len(a.Data.Result) != 1 {
		return 0, fmt.Errorf("%s has %d results", query, len(a.Data.Result))
	}
	text, _ := a.Data.Result[0].Value[1].(string)
	return strconv.ParseFloat(text, 64)
}

// Debian's Prometheus scrapes `serve` for ten minutes with the shipped configuration, without a warning. The shipped
// rules find that a limit throttles a database. promtool's lint finds nothing.
func TestPrometheusScrapes(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("takes ten minutes: LONG=1")
	}
	const during = 10 * time.Minute
	s := newSite(t)
	s.agent()
	s.write("groups:\n  busy: {role: database, match: [{exe: no-such-program}], cpu: {limit: 0.2}}\n")
	s.must("apply")
	s.begin("", map[string]string{"busy": spins})
	port := testhost.FreePort(t)
	s.start("serve", "--listen", fmt.Sprint("127.0.0.1:", port))
	p := s.startPrometheus(port)
	soon(t, "a scrape", func() bool { up, err := p.value("up"); return err == nil && up == 1 })
	begun := time.Now()
	for time.Since(begun) < during {
		time.Sleep(15 * time.Second)
		if up, err := p.value("up"); err != nil || up != 1 {
			t.Fatalf("after %s it is up: %v, %v", time.Since(begun), up, err)
		}
	}
	for query, least := range map[string]float64{"min_over_time(up[10m])": 1, "count_over_time(up[11m])": 38,
		"min_over_time(scrape_samples_scraped[10m])":                         100,
		`rate(bulkhead_group_cpu_seconds_total{group="busy"}[5m])`:           0.1,
		`rate(bulkhead_group_cpu_throttled_seconds_total{group="busy"}[5m])`: 0.1,
		`count(ALERTS{alertname="BulkheadDatabaseThrottled"})`:               1} {
		if v, err := p.value(query); err != nil || v < least {
			t.Errorf("%s is %v (at least %v is wanted): %v", query, v, least, err)
		}
	}
	log, err := os.ReadFile(p.log)
	if err != nil {
		t.Fatal(err)
	}
	if warned := regexp.MustCompile(`(?m)^.*level=(warn|error).*$`).FindAll(log, -1); len(warned) > 0 {
		t.Errorf("it says %q", warned)
	}
	if !strings.Contains(string(log), "Server is ready to receive web requests") {
		t.Errorf("it says no word of being ready:\n%s", log)
	}
	r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	lint := exec.Command(testhost.Program(t, "prometheus", "/usr/bin/promtool"), "check", "metrics")
	lint.Stdin = strings.NewReader(string(text))
	if said, err := lint.CombinedOutput(); err != nil || len(said) > 0 {
		t.Errorf("promtool's lint: %v\n%s", err, said)
	}
}
