package agent

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/notify"
)

// startTimeout is for how long the agent tries to put everything in force before it is ready all the same: what
// cannot be put in force must not keep a database that is ordered after the agent from starting.
const startTimeout = 10 * time.Second

// notifier tells whoever started the agent how it does: systemd by sd_notify(3), others by Options.Ready. The loop
// calls it, so that an agent whose loop is stuck is silent and the watchdog sees it.
type notifier struct {
	begun  time.Time
	wait   time.Duration // startTimeout, but in tests
	beat   time.Duration // between two signs of life; 0: nobody listens for them
	beaten time.Time
	ready  func()
	log    *slog.Logger

	mu     sync.Mutex // guards what follows: verbs come over the socket
	isOpen bool       // it is ready
	said   string
}

func newNotifier(ready func(), log *slog.Logger, now time.Time) *notifier {
	h := &notifier{begun: now, wait: startTimeout, ready: ready, log: log}
	timeout, err := notify.WatchdogTimeout()
	if err != nil {
		log.Warn("the watchdog is not served", "err", err)
	}
	h.beat = timeout / 4 // sd_watchdog_enabled(3) asks for half of it at most
	return h
}

// longLook bounds for how long one look is given signs of life while it waits for systemd: two of its jobs at their
// longest, and what undoes them.
const longLook = 5 * time.Minute

// during is the context of a look: a job of systemd's may take longer (100 s) than the watchdog waits (60 s). Each step
// that is done, and systemd's word that it is about the job, is a sign of life; a PID 1 that says nothing is none.
func (h *notifier) during(ctx context.Context, begun time.Time) context.Context {
	return systemd.WithProgress(ctx, func() {
		if now := time.Now(); now.Sub(begun) < longLook {
			h.alive(now)
		}
	})
}

// alive gives a sign of life when it is time for one.
func (h *notifier) alive(now time.Time) {
	if h.beat > 0 && now.Sub(h.beaten) >= h.beat/2 {
		h.beaten = now
		h.tell(notify.Alive)
	}
}

// looked takes the outcome of a full look: standing is what is enforced, trouble what is not in force.
func (h *notifier) looked(standing, trouble string, now time.Time) {
	text := "enforcing " + standing
	if trouble != "" {
		text += "; not everything is in force: " + trouble
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	words := []string{}
	if text != h.said {
		h.said, words = text, append(words, notify.Saying(text))
	}
	if !h.isOpen && (trouble == "" || now.Sub(h.begun) >= h.wait) {
		h.isOpen, words = true, append(words, notify.Ready)
		if h.ready != nil {
			h.ready()
		}
	}
	if len(words) > 0 {
		h.tell(words...)
	}
}

// isReady says whether it was ready once.
func (h *notifier) isReady() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.isOpen
}

// reloading says that a policy is being applied; the result ends it.
func (h *notifier) reloading() (done func()) {
	if !h.isReady() {
		return func() {}
	}
	h.tell(notify.Reloading())
	return func() { h.tell(notify.Ready) }
}

func (h *notifier) stopping() { h.tell(notify.Stopping, notify.Saying("every limit stays in force")) }

func (h *notifier) tell(words ...string) {
	if err := notify.Send(words...); err != nil {
		h.log.Debug("nobody heard", "err", err)
	}
}
