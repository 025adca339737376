package page

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/top"
)

// clock gives a new sample for each tick of a test.
type clock struct {
	t     *testing.T
	ticks chan error
	asked atomic.Int64
	n     int
	ended chan struct{}
}

func (c *clock) live(ctx context.Context, _ time.Time) (*observe.Sample, error) {
	select {
	case err := <-c.ticks:
		c.asked.Add(1)
		c.n++
		return sampleAt(c.t, float64(c.n)), err
	case <-ctx.Done():
		c.ended <- struct{}{}
		return nil, ctx.Err()
	}
}

func newClock(t *testing.T) (*clock, *httptest.Server) {
	t.Helper()
	c := &clock{t: t, ticks: make(chan error, 10), ended: make(chan struct{}, 10)}
	o := past(t, 2)
	o.Live = c.live
	o.Hint = func(error) string { return "start it" }
	server := httptest.NewServer(New(o))
	t.Cleanup(server.Close)
	return c, server
}

// events gives what is sent to one who watches, by its name; closed at the end.
func events(ctx context.Context, t *testing.T, url string) <-chan [2]string {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	if kind := answer.Header.Get("Content-Type"); answer.StatusCode != 200 || kind != "text/event-stream" {
		t.Fatalf("answered %d %q", answer.StatusCode, kind)
	}
	all := make(chan [2]string, 100)
	go func() {
		defer close(all)
		defer answer.Body.Close()
		lines := bufio.NewScanner(answer.Body)
		lines.Buffer(nil, 1<<20)
		name := ""
		for lines.Scan() {
			if text, is := strings.CutPrefix(lines.Text(), "event: "); is {
				name = text
			}
			if text, is := strings.CutPrefix(lines.Text(), "data: "); is {
				all <- [2]string{name, text}
			}
		}
	}()
	return all
}

// next waits for an event.
func next(t *testing.T, from <-chan [2]string) (name, text string) {
	t.Helper()
	select {
	case e, open := <-from:
		if !open {
			t.Fatal("there are no more events")
		}
		return e[0], e[1]
	case <-time.After(time.Minute):
		t.Fatal("no event comes")
	}
	return "", ""
}

// Twenty who watch get each sample, and the agent is asked for it once; when the last of them goes away it is asked no
// more, and the next one begins anew.
func TestViewers(t *testing.T) {
	c, server := newClock(t)
	ctx, cancel := context.WithCancel(t.Context())
	var all [20]<-chan [2]string
	for i := range all {
		group := ""
		if i%2 == 1 {
			group = "mysql3306"
		}
		all[i] = events(ctx, t, server.URL+"/api/live?group="+group)
	}
	c.ticks <- nil // without rates it is not shown
	for n := range 3 {
		c.ticks <- nil
		var done sync.WaitGroup
		for i := range all {
			done.Go(func() {
				name, text := next(t, all[i])
				var v view
				if err := json.Unmarshal([]byte(text), &v); name != "sample" || err != nil ||
					!v.At.Equal(sampleAt(t, float64(n+2)).At) || (v.Group != nil) != (i%2 == 1) || len(v.Groups) != 6 {
					t.Errorf("the %d. gets %s %v: %.200s", i, name, err, text)
				}
			})
		}
		done.Wait()
	}
	if n := c.asked.Load(); n != 4 {
		t.Errorf("the agent was asked for %d samples", n)
	}
	cancel()
	for i := range all {
		for range all[i] { // until it is closed
		}
	}
	select {
	case <-c.ended:
	case <-time.After(time.Minute):
		t.Fatal("the agent is asked on, though nobody watches")
	}
	later := events(t.Context(), t, server.URL+"/api/live")
	c.ticks <- nil
	c.ticks <- nil
	if name, _ := next(t, later); name != "sample" || c.asked.Load() != 6 {
		t.Errorf("the next one gets %s", name)
	}
}

// Who watches is told what is wrong, and what to do.
func TestTrouble(t *testing.T) {
	c, server := newClock(t)
	all := events(t.Context(), t, server.URL+"/api/live")
	c.ticks <- errors.New("no agent answers")
	if name, text := next(t, all); name != "trouble" || text != `{"error":"no agent answers","hint":"start it"}` {
		t.Errorf("it is told %s %s", name, text)
	}
	c.ticks <- nil
	c.ticks <- nil
	if name, _ := next(t, all); name != "sample" {
		t.Errorf("it is told %s when the agent is back", name)
	}
	c.n-- // the same sample again
	c.ticks <- nil
	if name, text := next(t, all); name != "trouble" || !strings.Contains(text, "no sample since 02:00:15 UTC") {
		t.Errorf("it is told %s %s of an old sample", name, text)
	}
	c.n = 0 // the clock was set back
	for _, second := range []string{"05", "10"} {
		c.ticks <- nil
		if name, text := next(t, all); name != "sample" || !strings.Contains(text, "02:00:"+second) {
			t.Errorf("it is told %s %.200s after the clock was set back", name, text)
		}
	}
}

// Names of groups that somebody makes up take no memory, however many.
func TestNamesThatAreNoGroups(t *testing.T) {
	h := hub{state: (*top.State)(nil).NextSample(sampleAt(t, 1), observe.Parts), texts: map[string][]byte{}}
	none, _, _, _ := h.now("")
	for i := range 100 {
		if event, _, _, _ := h.now(fmt.Sprint("made up ", i)); !bytes.Equal(event, none) {
			t.Fatalf("for a group that is not there: %s", event)
		}
	}
	if event, _, _, _ := h.now("mysql3306"); !bytes.Contains(event, []byte(`"group":{"name":"mysql3306"`)) ||
		len(h.texts) != 2 {
		t.Errorf("%d events are kept: %.200s", len(h.texts), event)
	}
}

// What happens while somebody watches is in each view after it, but where another group is shown.
func TestNewsAreTold(t *testing.T) {
	h := hub{news: make(chan struct{})}
	var state *top.State
	for n := 1.0; n <= 4; n++ {
		s := sampleAt(t, n)
		killed := int64(2)
		if n > 1 {
			killed = 5
		}
		s.Groups[0].Usage.Memory.OOMKills = &killed
		state = state.NextSample(s, observe.Parts)
		h.tell(t.Context(), state, nil)
		for group, told := range map[string]bool{"": n > 1, "mysql3306": n > 1, "mysql3306/backup": false} {
			event, _, _, _ := h.now(group)
			const want = `{"at":"2026-11-20T02:00:10Z","group":"mysql3306","kind":"killed",` +
				`"text":"processes killed for want of memory: 3"}`
			if bytes.Count(event, []byte(want)) == 1 != told {
				t.Errorf("%.0f: of %q is told %s", n, group, event)
			}
		}
	}
}

// There are not more who watch than may, and one who goes away makes room.
func TestMostViewers(t *testing.T) {
	_, server := newClock(t)
	ctx, cancel := context.WithCancel(t.Context())
	for range mostViewers {
		events(ctx, t, server.URL+"/api/live")
	}
	code := func() int {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, "GET", server.URL+"/api/live", nil)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	if got := code(); got != 503 {
		t.Errorf("one more is answered %d", got)
	}
	cancel()
	for deadline := time.Now().Add(time.Minute); code() != 200; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("there is no room again")
		}
	}
}
