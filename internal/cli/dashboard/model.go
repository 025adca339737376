// Package dashboard is the screen of `bulkhead top`: the groups as a table that follows a running agent or its record.
//
// A Model is what is shown and does nothing by itself: Update takes keys and what was read, View gives the screen. It
// is for one goroutine. Run puts it on a terminal, and Print on what is none.
package dashboard

import (
	"context"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/observe/top"
)

// Options of a Model.
type Options struct {
	// Live waits for a sample after the one of a time; nil: there is no agent, or none is wanted.
	Live func(ctx context.Context, after time.Time) (*observe.Sample, error)
	// Load reads what was recorded between two times.
	Load func(ctx context.Context, from, to time.Time) ([]record.Tick, error)
	// Reach says from when to when there is a record; nil: nobody knows.
	Reach func(ctx context.Context) (record.Reach, error)
	// At is the moment to begin with; zero is now.
	At    time.Time
	Of    string // the host, or the file
	ASCII bool   // draw with ASCII alone
	View  top.View
}

// panel is what is open below the table.
type panel int

const (
	none panel = iota
	why
	limits
	help
)

// The parts of the screen beside the columns: marks, the name of the group, and the trend.
const (
	marks      = 2
	leastName  = 16
	mostName   = 40
	trendWidth = 8
	mostTrend  = 32
	plainWidth = 80
)

// fitting are the columns that a window has room for.
func fitting(width int) []top.Column { return top.Fitting(width - marks - leastName - 1 - trendWidth) }

// Model is what is shown. Make it with New.
type Model struct {
	o   Options
	ctx context.Context //nolint:containedctx // of the program, for what Update begins

	reel        *top.Reel
	at          int  // which state is shown
	live        bool // the last one is, as it comes
	frozen      bool // it was live
	lost        bool // the agent does not answer, or takes no sample
	loading     bool
	following   bool // the agent is asked for the next sample
	begins      bool // nothing is recorded for a while before what was read
	ends        bool // and behind it
	interactive bool

	view   top.View
	rows   []top.Row // of the last drawing
	cursor string    // the chosen group
	panel  panel
	typing bool // the filter
	said   string

	width, height int
}

// What Update takes beside keys.
type (
	sampled struct{ sample *observe.Sample }
	failed  struct{ err error }
	loaded  struct {
		ticks []record.Tick
		at    time.Time
		step  int // from the state of that time
		live  bool
		err   error
	}
	reached struct {
		reach record.Reach
		back  bool
		err   error
	}
)

// New makes a model that shows nothing yet: Init reads.
func New(ctx context.Context, o Options) *Model {
	if o.View.Folded == nil {
		o.View.Folded = map[string]bool{}
	}
	return &Model{o: o, ctx: ctx, reel: &top.Reel{}, view: o.View, width: plainWidth, height: 24, interactive: true,
		said: "reading"}
}

// Init reads what there is around the moment to begin with.
func (m *Model) Init() tea.Cmd { return m.begin() }

func (m *Model) begin() tea.Cmd {
	if m.o.At.IsZero() {
		return m.load(loaded{at: time.Now(), live: true})
	}
	return m.load(loaded{at: m.o.At})
}

// load reads the record around a moment.
func (m *Model) load(l loaded) tea.Cmd {
	if m.loading {
		return nil
	}
	m.loading = true
	return func() tea.Msg {
		l.ticks, l.err = m.o.Load(m.ctx, l.at.Add(-2*record.Before), l.at.Add(record.Before))
		return l
	}
}

// follow waits for the next sample of the agent.
func (m *Model) follow() tea.Cmd {
	if m.following {
		return nil
	}
	m.following = true
	last := after(m.reel)
	return func() tea.Msg {
		s, err := m.o.Live(m.ctx, last)
		if err != nil {
			return failed{err}
		}
		return sampled{s}
	}
}

// after is the time of the last state of a reel, behind which the next sample is; zero without one.
func after(r *top.Reel) time.Time {
	at := r.Newest()
	if !at.IsZero() {
		at = at.Add(time.Millisecond) // times of states have no parts of one, and those of samples do
	}
	return at
}

// again waits before the agent is asked again.
func again() tea.Cmd { return tea.Tick(2*time.Second, func(time.Time) tea.Msg { return sampled{} }) }

// Update takes a key or what was read.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case loaded:
		return m, m.take(msg)
	case sampled:
		return m, m.add(msg.sample)
	case reached:
		return m, m.cross(msg)
	case failed:
		m.following, m.lost = false, true
		m.said = msg.err.Error()
		if m.ctx.Err() == nil {
			return m, again()
		}
	case tea.KeyPressMsg:
		return m, m.key(msg.String())
	case tea.PasteMsg:
		if m.typing {
			m.view.Filter += strings.TrimSpace(msg.Content)
		}
	}
	return m, nil
}

// take takes what was loaded.
func (m *Model) take(l loaded) tea.Cmd {
	m.loading = false
	m.said = ""
	if l.err != nil {
		m.said = l.err.Error()
	}
	reel := &top.Reel{}
	for _, t := range l.ticks {
		reel.Append(t)
	}
	if reel.Len() > 0 || l.live {
		m.begins = reel.Len() == 0 || reel.State(0).At.After(l.at.Add(-record.Before-time.Minute))
		m.ends = reel.Newest().Before(l.at.Add(time.Minute))
	}
	switch {
	case l.live:
		m.reel, m.at = reel, max(reel.Len()-1, 0)
		if m.o.Live != nil {
			m.live, m.frozen = true, false
			if reel.Len() == 0 && l.err == nil {
				m.said = "waiting for the agent's next sample"
			}
			return m.follow()
		}
		if reel.Len() == 0 && l.err == nil {
			m.said = "nothing is recorded of the last minutes, and no agent answers"
		}
	case reel.Len() == 0 && l.err == nil:
		m.said = "nothing is recorded at " + l.at.Local().Format(time.DateTime)
	case reel.Len() > 0:
		m.reel, m.live, m.frozen = reel, false, false
		m.at = min(max(reel.Find(l.at)+l.step, 0), reel.Len()-1)
	}
	return nil
}

// add adds a sample of the agent; nil asks for one.
func (m *Model) add(s *observe.Sample) tea.Cmd {
	if m.o.Live == nil || !m.live && !m.frozen {
		m.following = false
		return nil // somebody looks at the past
	}
	if s != nil {
		m.following, m.lost, m.said = false, false, ""
		before := m.reel.Newest()
		m.at = max(m.at-m.reel.AppendSample(s), 0)
		if m.live {
			m.at = m.reel.Len() - 1
		}
		if m.reel.Newest().Equal(before) {
			m.lost = true
			m.said = "the agent has taken no sample since " + before.Local().Format(time.TimeOnly)
			return again()
		}
	}
	return m.follow()
}

// key does what a key says.
func (m *Model) key(key string) tea.Cmd {
	if m.typing {
		m.edit(key)
		return nil
	}
	if by, is := steps[key]; is {
		m.choose(by)
		return nil
	}
	if to, is := travels[key]; is {
		return m.travel(to)
	}
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "enter", "space":
		if g := m.group(); g != "" {
			m.view.Folded[g] = !m.view.Folded[g]
		}
	case "s", "S":
		m.sort(key == "S")
	case "r":
		m.view.Reverse = !m.view.Reverse
	case "/":
		m.typing = true
	case "esc":
		if m.panel == none {
			m.view.Filter = ""
		}
		m.panel = none
	case "w":
		m.open(why)
	case "l":
		m.open(limits)
	case "?", "h":
		m.open(help)
	case "f":
		return m.freeze()
	case "end":
		return m.now()
	}
	return nil
}

// steps are the keys that choose a group, and how many lines they go; a page is ten.
var steps = map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -10, "pgdown": 10}

// edit changes the filter.
func (m *Model) edit(key string) {
	switch {
	case key == "enter":
		m.typing = false
	case key == "esc", key == "ctrl+c":
		m.typing, m.view.Filter = false, ""
	case key == "backspace":
		if runes := []rune(m.view.Filter); len(runes) > 0 {
			m.view.Filter = string(runes[:len(runes)-1])
		}
	case key == "space":
		m.view.Filter += " "
	case len([]rune(key)) == 1:
		m.view.Filter += key
	}
}

// open opens a panel, or closes it.
func (m *Model) open(p panel) {
	if m.panel == p {
		p = none
	}
	m.panel = p
}

// sort sorts by the next column, or the one before.
func (m *Model) sort(back bool) {
	names := []string{""}
	for _, c := range fitting(m.width) {
		names = append(names, c.Name)
	}
	at := max(slices.Index(names, m.view.Sort), 0) + 1
	if back {
		at += len(names) - 2
	}
	m.view.Sort = names[at%len(names)]
}

// chosen is the place of the chosen group among the rows.
func (m *Model) chosen() int {
	for i, r := range m.rows {
		if r.Name == m.cursor {
			return i
		}
	}
	return 0
}

// group is the chosen group, "" when there is none.
func (m *Model) group() string {
	if len(m.rows) == 0 {
		return ""
	}
	return m.rows[m.chosen()].Name
}

func (m *Model) choose(step int) {
	if n := len(m.rows); n > 0 {
		m.cursor = m.rows[min(max(m.chosen()+step, 0), n-1)].Name
	}
}

// freeze stops following the agent, or goes on.
func (m *Model) freeze() tea.Cmd {
	switch {
	case m.live:
		m.live, m.frozen = false, true
	case m.frozen:
		m.live, m.frozen, m.at = true, false, max(m.reel.Len()-1, 0)
	default:
		return m.now()
	}
	return nil
}

// now goes back to what is there now.
func (m *Model) now() tea.Cmd {
	switch {
	case m.live || m.reel.Len() == 0:
		return nil
	case m.frozen:
		return m.freeze()
	}
	m.said = "reading"
	return m.load(loaded{at: time.Now(), live: true})
}

// travels are the keys that go in time.
var travels = map[string]distance{
	"left": {0, true}, "right": {0, false}, "[": {time.Minute, true}, "]": {time.Minute, false},
	"{": {time.Hour, true}, "}": {time.Hour, false},
}

// distance is how far a key goes; by 0 is one sample.
type distance struct {
	by   time.Duration
	back bool
}

// travel goes to another time.
func (m *Model) travel(d distance) tea.Cmd {
	n := m.reel.Len()
	if n == 0 || m.loading {
		return nil
	}
	if m.live {
		m.live, m.frozen = false, true
	}
	to, want := m.place(d)
	switch {
	case to >= 0 && to < n && !m.early(to):
		m.at, m.said = to, ""
		return nil
	case to >= n && m.frozen:
		return m.freeze()
	case d.by == 0 && (to < 0 && m.begins || to >= n && m.ends):
		return m.ask(d.back)
	}
	m.said = "reading"
	if to >= n && d.by == 0 {
		return m.load(loaded{at: m.reel.State(m.at).At, step: 1})
	}
	return m.load(loaded{at: want})
}

// place is the state so far away, below 0 or behind the last one where that is not read, and its time.
func (m *Model) place(d distance) (to int, want time.Time) {
	now := m.reel.State(m.at).At
	switch {
	case d.by == 0 && d.back:
		return m.at - 1, now.Add(-time.Millisecond)
	case d.by == 0:
		return m.at + 1, now
	case d.back:
		return m.reel.Find(now.Add(-d.by)), now.Add(-d.by)
	}
	if want = now.Add(d.by); want.After(m.reel.Newest()) {
		return m.reel.Len(), want
	}
	return max(m.reel.Find(want), m.at+1), want
}

// early says whether not all that was known then is known of a state, because it is too near the begin of what was
// read.
func (m *Model) early(i int) bool {
	return !m.begins && m.reel.State(i).At.Sub(m.reel.State(0).At) < record.Before
}

// ask asks how far the record goes, at an end of what was read.
func (m *Model) ask(back bool) tea.Cmd {
	m.said = map[bool]string{true: "the record begins here", false: "the record ends here"}[back]
	if m.o.Reach == nil {
		return nil
	}
	m.loading = true
	return func() tea.Msg {
		reach, err := m.o.Reach(m.ctx)
		return reached{reach, back, err}
	}
}

// near says whether two times are one, up to what gets lost where a record is sealed.
func near(a, b time.Time) bool { return a.Sub(b).Abs() < time.Minute }

// cross goes over a gap in the record, where there is one at this end of what was read.
func (m *Model) cross(r reached) tea.Cmd {
	m.loading = false
	if r.err != nil {
		m.said = r.err.Error()
		return nil
	}
	at := m.reel.State(m.at).At
	for _, g := range r.reach.Gaps {
		switch {
		case r.back && near(g.To, at):
			return m.load(loaded{at: g.From})
		case !r.back && near(g.From, at):
			return m.load(loaded{at: g.To})
		}
	}
	return nil
}
