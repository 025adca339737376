package exposition

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/figures"
	"bulkhead/internal/observe/observetest"
)

// 20 scrapers at once, who ask different things while samples change, get each a whole answer about one sample.
func TestScrapersAtOnce(t *testing.T) {
	one := observetest.Sample(t)
	var taken atomic.Int64
	s := patient(Options{Fetch: func(_ context.Context, had *figures.Set) (*figures.Set, error) {
		n := taken.Add(1)
		next := *one
		next.At, next.Revision = one.At.Add(time.Duration(n)), int(n)
		return sent(&next, had)
	}})
	var wait sync.WaitGroup
	for i := range 20 {
		wait.Go(func() {
			target := "/metrics"
			if part := observe.Parts[i%len(observe.Parts)]; i%2 == 1 {
				target += "?exclude%5B%5D=" + string(part)
			}
			accept := []string{"", "application/openmetrics-text"}[i/2%2]
			for range 20 {
				s.last.mu.Lock()
				s.last.tried = time.Time{} // so that the agent is asked
				s.last.mu.Unlock()
				code, _, text := scraped(t, s, target, accept)
				if code != 200 || strings.Count(text, "\nbulkhead_up 1") != 1 ||
					strings.HasSuffix(text, "# EOF\n") != (accept != "") {
					t.Errorf("%s: %d %.200s", target, code, text)
					return
				}
			}
		})
	}
	wait.Wait()
	if taken.Load() < 2 {
		t.Error("the sample did not change meanwhile")
	}
}
