package serve

import (
	"bufio"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/observetest"
	"bulkhead/internal/observe/record"
)

// The page and the metrics are at one address, and who watches the page does not keep serve from ending.
func TestPage(t *testing.T) {
	p := newPlace(t)
	p.agent()
	stop := p.run("--listen", "127.0.0.1:0")
	base := "http://" + p.address()
	code, text := get(t, http.DefaultClient, base+"/", "")
	if code != 200 || !strings.Contains(text, `href="metrics"`) {
		t.Errorf("the page is answered %d %s", code, text)
	}
	for _, path := range []string{"/api/about", "/metrics"} {
		r, err := http.NewRequest("GET", base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "evil.example"
		refused, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = refused.Body.Close()
		if refused.StatusCode != 421 {
			t.Errorf("%s by another name is answered %d", path, refused.StatusCode)
		}
	}
	watched, err := http.Get(base + "/api/live?group=mysql3306")
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Body.Close()
	lines := bufio.NewScanner(watched.Body)
	lines.Buffer(nil, 1<<20)
	found := false
	for !found && lines.Scan() { // the agent's sample is always the same one, which is told, too
		found = strings.HasPrefix(lines.Text(), "data: ") && strings.Contains(lines.Text(), "mysql3306")
	}
	if !found {
		t.Errorf("nothing comes: %v", lines.Err())
	}
	begin := time.Now()
	if err := stop(); err != nil || time.Since(begin) > 20*time.Second {
		t.Errorf("it ended with %v after %s", err, time.Since(begin))
	}
	for lines.Scan() { // until it is closed
	}
}

// A file is shown without an agent, and without metrics.
func TestFile(t *testing.T) {
	p := newPlace(t)
	name := filepath.Join(p.dir, "incident")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	s := observetest.Sample(t)
	err = record.Write(f, func(yield func(record.Tick) error) error { return yield(record.TickOf(s, observe.Parts)) })
	if err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	stop := p.run("--listen", "127.0.0.1:0", "--file", name)
	base := "http://" + p.address()
	if code, text := get(t, http.DefaultClient, base+"/api/about", ""); code != 200 ||
		!strings.Contains(text, `"of":"incident"`) || !strings.Contains(text, `"live":false`) {
		t.Errorf("answered %d %s", code, text)
	}
	if code, text := get(t, http.DefaultClient, base+"/api/at?at=1795600000000", ""); code != 404 {
		t.Errorf("much later it is answered %d %s", code, text)
	}
	at := "1763632800000" // 2025: long before
	if code, _ := get(t, http.DefaultClient, base+"/api/at?at="+at, ""); code != 404 {
		t.Errorf("long before it is answered %d", code)
	}
	if code, text := get(t, http.DefaultClient, base+"/api/at?at=1795168800000", ""); code != 200 ||
		!strings.Contains(text, "mysql3306") {
		t.Errorf("then it is answered %d %s", code, text)
	}
	if code, _ := get(t, http.DefaultClient, base+"/metrics", ""); code != 404 {
		t.Errorf("metrics are answered %d", code)
	}
	if err := stop(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	stop = p.run("--file", filepath.Join(p.dir, "none"), "--listen", "127.0.0.1:0")
	if err := stop(); api.CodeOf(err) != api.CodeFailed {
		t.Errorf("a file that is not there: %v", err)
	}
}
