package dashboard

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"

	"bulkhead/internal/api"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/top"
)

// Run shows it on a terminal until somebody quits or ctx ends. Colours and bold text are left out where the environment
// says so (NO_COLOR), or the terminal has none.
func Run(ctx context.Context, in, out *os.File, o Options) error {
	p := tea.NewProgram(New(ctx, o), tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(out),
		tea.WithoutSignalHandler(), tea.WithFPS(framesPerSecond))
	if _, err := p.Run(); !errors.Is(err, tea.ErrProgramKilled) || ctx.Err() == nil {
		return err
	}
	return nil // ctx has ended it
}

// framesPerSecond is how often the screen is drawn at most: somebody who holds a key down over a slow line sees the end
// of it soon.
const framesPerSecond = 20

// Once is what is shown without a terminal.
type Once struct {
	At     time.Time      `json:"at"`
	Host   top.Cells      `json:"host"`
	Groups []top.OneGroup `json:"groups"` // as sorted and filtered

	lines []line
}

// wide is how many characters the lines have where nobody looks at a terminal: all columns fit.
const wide = 133

// Take reads what Run would show first. A running agent is waited for until rates are known.
func Take(ctx context.Context, o Options) (*Once, error) {
	m := New(ctx, o)
	m.interactive = false
	msg, ok := m.begin()().(loaded)
	if !ok || msg.err != nil && !(msg.live && o.Live != nil) {
		return nil, msg.err
	}
	m.take(msg)
	for n := 0; m.live && n < 3; n++ {
		s, err := o.Live(ctx, after(m.reel))
		if err != nil {
			return nil, err
		}
		m.reel.AppendSample(s)
		m.at = m.reel.Len() - 1
		if m.reel.State(m.at).Rated(observe.CPU) {
			break
		}
	}
	if m.reel.Len() == 0 {
		return nil, &api.Error{Code: api.CodeFailed, Err: errors.New(m.said),
			Hint: "`bulkhead record` says from when to when there is something"}
	}
	s := m.reel.State(m.at)
	h := s.Host()
	once := &Once{At: s.At, Host: h.Named(), Groups: []top.OneGroup{}, lines: m.draw(wide, 0)}
	for _, r := range m.view.Rows(s, top.Columns) {
		once.Groups = append(once.Groups, r.Named())
	}
	return once, nil
}

// Text is it as plain text.
func (o *Once) Text() string {
	var b strings.Builder
	for i, l := range o.lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(strings.TrimRight(l.text, " "))
	}
	return b.String()
}
