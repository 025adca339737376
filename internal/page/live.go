package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/top"
)

const (
	// mostViewers is how many may watch at once.
	mostViewers = 100
	// beat is how often something is sent in any case, so that who went away is noticed; a write may take as long.
	beat = 10 * time.Second
	// again is how long after an error the agent is asked again.
	again = 2 * time.Second
)

// mostNews is how many changes an event has at most: a page that was slow, or came later, misses none of the last ones.
const mostNews = 50

// unrated is how many samples are waited for before figures are shown without rates.
const unrated = 3

// hub asks for samples while somebody watches, each once for all. Make it with what stands before the
// lock.
type hub struct {
	live func(context.Context, time.Time) (*observe.Sample, error)
	// recorded gives what was recorded last, so that rates are known at once; nil where there is nothing.
	recorded func(context.Context) *top.State
	hint     hint

	mu      sync.Mutex // guards what follows
	viewers int
	stop    context.CancelFunc
	news    chan struct{} // closed when there is something new
	state   *top.State
	texts   map[string][]byte // of the state, by the group that is shown
	changes []top.Change      // the last ones since somebody watches
	wrong   error             // why there is nothing new
}

var errMany = errors.New("too many watch this page at once")

// join counts who begins to watch. Who does has to leave.
func (h *hub) join(ctx context.Context) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.viewers >= mostViewers {
		return errMany
	}
	if h.viewers++; h.viewers == 1 {
		h.state, h.wrong, h.texts, h.changes = nil, nil, nil, nil
		h.news = make(chan struct{})
		ctx, h.stop = context.WithCancel(context.WithoutCancel(ctx))
		go h.follow(ctx)
	}
	return nil
}

func (h *hub) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.viewers--; h.viewers == 0 {
		h.stop()
	}
}

// follow asks until ctx ends.
func (h *hub) follow(ctx context.Context) {
	state := h.recorded(ctx)
	for n := 0; ctx.Err() == nil; n++ {
		var after time.Time
		if state != nil {
			after = state.At.Add(time.Millisecond) // a state has no parts of one
		}
		sample, err := h.live(ctx, after)
		next := state
		if err == nil {
			next = state.NextSample(sample, observe.Parts)
			if next == state {
				err = fmt.Errorf("the agent has taken no sample since %s", state.At.Format(time.TimeOnly+" MST"))
			}
		}
		if state = next; err != nil || state.Rated(observe.CPU) || n >= unrated {
			h.tell(ctx, state, err)
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(again):
			}
		}
	}
}

// tell tells all who watch.
func (h *hub) tell(ctx context.Context, s *top.State, wrong error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() != nil {
		return // another one follows
	}
	if s != h.state {
		if h.state != nil && s != nil {
			h.changes = append(h.changes, top.Changes(h.state, s)...)
			h.changes = h.changes[max(0, len(h.changes)-mostNews):]
		}
		h.state, h.texts = s, map[string][]byte{}
	}
	h.wrong = wrong
	close(h.news)
	h.news = make(chan struct{})
}

// now gives the last state as an event for who looks at a group, nil where it has none, what tells of something newer,
// and what is wrong.
func (h *hub) now(group string) (event []byte, at *top.State, news <-chan struct{}, wrong error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.text(group), h.state, h.news, h.wrong
}

// text is the last state as an event. It is kept for all who look at a group that is there: names that somebody makes
// up take no memory.
func (h *hub) text(group string) []byte {
	if text := h.texts[group]; text != nil || h.state == nil {
		return text
	}
	v := viewOf(h.state, group)
	if v.Group == nil {
		group = ""
	}
	v.Changes = slices.DeleteFunc(slices.Clone(h.changes), func(c top.Change) bool { return !concerns(c, group) })
	if h.texts[group] == nil {
		h.texts[group] = eventOf("sample", v)
	}
	return h.texts[group]
}

// eventOf is a server-sent event. JSON has no line breaks, and figures of a State are finite or left out.
func eventOf(name string, v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		name, text = "trouble", []byte(`{"error":"the sample cannot be shown"}`)
	}
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", name, text)
}

// watch sends what is new until who watches goes away.
func (h *hub) watch(w http.ResponseWriter, r *http.Request) {
	group, err := groupOf(r)
	switch {
	case err != nil:
		h.hint.answer(w, nil, err)
		return
	case h.live == nil:
		h.hint.answer(w, nil, fmt.Errorf("%w now: a file is shown", errNothing))
		return
	}
	if err := h.join(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer h.leave()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // nginx passes it on at once
	c := http.NewResponseController(w)
	send := func(text []byte) bool {
		_ = c.SetWriteDeadline(time.Now().Add(beat))
		_, err := w.Write(text)
		return err == nil && c.Flush() == nil
	}
	var sent *top.State
	for going := send([]byte(": begin\n\n")); going; {
		event, at, news, wrong := h.now(group)
		if at != sent && event != nil {
			going = send(event)
			sent = at
		}
		if wrong != nil {
			going = going && send(eventOf("trouble", h.hint.trouble(wrong)))
		}
		select {
		case <-r.Context().Done():
			return
		case <-news:
		case <-time.After(beat):
			going = going && send([]byte(": beat\n\n"))
		}
	}
}
