package systemd

import (
	"context"
	"time"

	"bulkhead/internal/systemd/unitname"

	"github.com/godbus/dbus/v5"
)

// ReasonKind says what happened.
type ReasonKind string

// Kinds of reason to look again.
const (
	// Missed: from now on the watch hears everything, and before it may have missed something. The first reason of
	// every watch, and the first after every loss of the bus.
	Missed ReasonKind = "missed"
	// ReloadBegins and ReloadEnded frame a daemon-reload, which writes every limit systemd knows anew and gives back
	// what was set at run time over a file's.
	ReloadBegins ReasonKind = "reload begins"
	ReloadEnded  ReasonKind = "reload ended"
	UnitRemoved  ReasonKind = "unit removed" // unloaded: a transient one is gone
	JobRemoved   ReasonKind = "job ended"    // a start, stop or restart of the unit
	// Its state, main process or directory. A limit that is set announces nothing.
	UnitChanged ReasonKind = "unit changed"
)

// Reason is one reason to look again. Several of the same are told once.
type Reason struct {
	Kind ReasonKind
	Unit string // "" when it is about all
}

// WatchOptions of a Watcher. The zero value tells of every unit.
type WatchOptions struct {
	Options
	// Units picks the units to tell of; nil is all.
	Units func(name string) bool
	// MinWait and MaxWait bound the wait before the bus is tried again, which doubles each time; 0 is 100 ms and 30 s.
	MinWait, MaxWait time.Duration
	// Every is how often the bus is asked for a sign of life; 0 is 30 s. One that does not answer counts as lost.
	Every time.Duration
	// Lost is told why a connection was lost or could not be made; nil ignores it.
	Lost func(error)
}

// Watch tells reasons to look again until ctx ends, then closes the channel. It outlives the bus: it connects again,
// and then says Missed. A slow reader misses nothing, as reasons add up.
func Watch(ctx context.Context, o WatchOptions) <-chan Reason {
	if o.Timeout == 0 {
		o.Timeout = 25 * time.Second
	}
	if o.MinWait == 0 {
		o.MinWait = 100 * time.Millisecond
	}
	if o.MaxWait == 0 {
		o.MaxWait = 30 * time.Second
	}
	if o.Every == 0 {
		o.Every = 30 * time.Second
	}
	w := &watcher{WatchOptions: o, out: make(chan Reason), held: make(map[Reason]bool)}
	go w.run(ctx)
	return w.out
}

type watcher struct {
	WatchOptions
	out  chan Reason
	wait []Reason // told to nobody yet, in order
	held map[Reason]bool
}

func (w *watcher) run(ctx context.Context) {
	defer close(w.out)
	pause := w.MinWait
	for {
		began := false
		err := w.listen(ctx, func() { began = true })
		if ctx.Err() != nil {
			return
		}
		if w.Lost != nil {
			w.Lost(failed("watch systemd", "", err))
		}
		if began {
			pause = w.MinWait
		}
		if !w.idle(ctx, pause) {
			return
		}
		pause = min(2*pause, w.MaxWait)
	}
}

// idle hands out what is held while it waits; false when ctx ended.
func (w *watcher) idle(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		out, next := w.next()
		select {
		case out <- next:
			w.told()
		case <-timer.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// next gives the channel to hand a reason to, nil when there is none.
func (w *watcher) next() (chan<- Reason, Reason) {
	if len(w.wait) == 0 {
		return nil, Reason{}
	}
	return w.out, w.wait[0]
}

func (w *watcher) told() {
	delete(w.held, w.wait[0])
	w.wait = w.wait[1:]
}

func (w *watcher) add(r Reason) {
	if r.Unit != "" && w.Units != nil && !w.Units(r.Unit) || w.held[r] {
		return
	}
	w.held[r] = true
	w.wait = append(w.wait, r)
}

// listen makes one connection and lives as long as it. began is called once signals come in.
func (w *watcher) listen(ctx context.Context, began func()) error {
	life, cancel := context.WithCancel(ctx)
	defer cancel()
	guard := time.AfterFunc(w.Timeout, cancel)
	// In order, however many come at once: the library's usual way shuffles them when the reader is slow.
	conn, err := w.dial(life, dbus.WithSignalHandler(dbus.NewSequentialSignalHandler()))
	if err != nil {
		return inTime(guard, err)
	}
	defer conn.Close()
	signals := make(chan *dbus.Signal, 64)
	conn.Signal(signals)
	if err := inTime(guard, subscribe(life, conn)); err != nil {
		return err
	}
	began()
	w.add(Reason{Kind: Missed})

	alive := time.NewTicker(w.Every)
	defer alive.Stop()
	answer := make(chan error, 1)
	asked := false
	for {
		out, next := w.next()
		select {
		case s, ok := <-signals:
			if !ok {
				return dbus.ErrClosed
			}
			w.hear(s)
		case out <- next:
			w.told()
		case <-alive.C:
			if !asked {
				asked = true
				go func() { answer <- ping(life, conn, w.Timeout) }()
			}
		case err := <-answer:
			if asked = false; err != nil {
				return err
			}
		case <-life.Done():
			return life.Err()
		}
	}
}

// inTime stops the guard when the handshake is over: it is what made err when it was faster.
func inTime(guard *time.Timer, err error) error {
	if !guard.Stop() {
		return context.DeadlineExceeded
	}
	return err
}

func ping(ctx context.Context, conn *dbus.Conn, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return conn.Object(busName, managerPath).CallWithContext(ctx, "org.freedesktop.DBus.Peer.Ping", 0).Err
}

// subscribe asks for the manager's signals. On its private socket systemd sends them unasked and knows no matches.
func subscribe(ctx context.Context, conn *dbus.Conn) error {
	for _, member := range []string{"Reloading", "UnitRemoved", "JobRemoved"} {
		_ = conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface(managerIface), dbus.WithMatchMember(member))
	}
	_ = conn.AddMatchSignalContext(ctx, dbus.WithMatchInterface("org.freedesktop.DBus.Properties"),
		dbus.WithMatchMember("PropertiesChanged"), dbus.WithMatchPathNamespace("/org/freedesktop/systemd1/unit"))
	if err := ctx.Err(); err != nil {
		return err
	}
	return conn.Object(busName, managerPath).CallWithContext(ctx, managerIface+".Subscribe", 0).Err
}

// hear turns a signal into a reason.
func (w *watcher) hear(s *dbus.Signal) {
	text := func(i int) string {
		if i >= len(s.Body) {
			return ""
		}
		value, _ := s.Body[i].(string)
		return value
	}
	switch s.Name {
	case managerIface + ".Reloading":
		kind := ReloadEnded
		if len(s.Body) > 0 && s.Body[0] == true {
			kind = ReloadBegins
		}
		w.add(Reason{Kind: kind})
	case managerIface + ".UnitRemoved":
		w.named(UnitRemoved, text(0))
	case managerIface + ".JobRemoved":
		w.named(JobRemoved, text(2))
	case "org.freedesktop.DBus.Properties.PropertiesChanged":
		unit, _ := unitname.UnitOfObject(string(s.Path))
		w.named(UnitChanged, unit)
	}
}

func (w *watcher) named(kind ReasonKind, unit string) {
	if unit != "" {
		w.add(Reason{kind, unit})
	}
}
