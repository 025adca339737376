package neighbour

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestScrapeAsksAgainAndAgain(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer server.Close()
	if err := Scrape(t.Context(), ExporterOptions{For: 500 * time.Millisecond, Every: 50 * time.Millisecond,
		URL: server.URL}, []string{"/bin/sleep", "60"}); err != nil {
		t.Fatal(err)
	}
	if n := asked.Load(); n < 3 || n > 11 {
		t.Errorf("it was scraped %d times in half a second, every 50 ms", n)
	}
}

func TestScrapeSaysWhatIsWrong(t *testing.T) {
	was := answerTime
	answerTime = 300 * time.Millisecond
	defer func() { answerTime = was }()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer server.Close()
	for what, c := range map[string]struct {
		url     string
		command []string
		want    string
	}{
		"one that ends": {"http://127.0.0.1:1/", []string{"/bin/sh", "-c", "echo no such flag; exit 3"},
			"no such flag"},
		"one without figures": {server.URL, []string{"/bin/sleep", "60"}, "500"},
	} {
		start := time.Now()
		err := Scrape(t.Context(), ExporterOptions{For: time.Minute, Every: time.Second, URL: c.url}, c.command)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
		if time.Since(start) > 10*time.Second {
			t.Errorf("%s took %v", what, time.Since(start))
		}
	}
}
