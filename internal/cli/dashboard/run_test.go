package dashboard

import (
	"bytes"
	"context"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/creack/pty"
	"golang.org/x/term"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/top"
)

// sink is a terminal that keeps what it gets.
type sink struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *sink) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(b)
}

func (s *sink) take() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.text.String()
	s.text.Reset()
	return text
}

// settled waits until nothing is written for a while, and gives what was.
func (s *sink) settled() (text string) {
	for quiet := 0; quiet < 3; quiet++ {
		time.Sleep(100 * time.Millisecond)
		if more := s.take(); more != "" {
			text, quiet = text+more, 0
		}
	}
	return text
}

// Over a slow line: a refresh in which each figure of 20 groups changes sends less than the screen has, and one in
// which only the time does next to nothing.
func TestBytesOfARefresh(t *testing.T) {
	at := 0
	busy := func() *observe.Sample {
		at++
		s := &observe.Sample{At: busiest.Add(time.Duration(at) * time.Second)}
		for _, p := range observe.Parts {
			s.Collectors = append(s.Collectors, observe.Reading{Name: p, On: true, Told: true})
		}
		for i := range int64(20) {
			n := int64(at) * (i + 1)
			name := "group" + string(rune('a'+i))
			s.Groups = append(s.Groups, using(name, "batch", n*n*1000, n*100, n<<20, n*n<<10, n<<11))
		}
		return s
	}
	next := make(chan *observe.Sample)
	m := New(t.Context(), Options{Load: nothing, Live: func(ctx context.Context, _ time.Time) (*observe.Sample, error) {
		select {
		case s := <-next:
			return s, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}})
	out := &sink{}
	ctx, end := context.WithCancel(t.Context())
	p := tea.NewProgram(m, tea.WithInput(nil), tea.WithOutput(out), tea.WithWindowSize(80, 24), tea.WithContext(ctx),
		tea.WithoutSignalHandler(), tea.WithEnvironment([]string{"TERM=xterm-256color"}))
	done := make(chan struct{})
	go func() { defer close(done); _, _ = p.Run() }()
	defer func() { end(); <-done }()
	refresh := func(s *observe.Sample) int {
		next <- s
		return len(out.settled())
	}
	for range 3 {
		refresh(busy())
	}
	if n := refresh(busy()); n == 0 || n > 80*24 {
		t.Errorf("a refresh in which everything changes sends %d bytes", n)
	} else {
		t.Logf("everything changes: %d bytes", n)
	}
	same := busy()
	refresh(same)
	later := *same
	later.At = same.At.Add(time.Second)
	for i := range later.Collectors {
		later.Collectors[i].Age = time.Second
	}
	if n := refresh(&later); n == 0 || n > 60 {
		t.Errorf("a refresh in which the time alone changes sends %d bytes", n)
	} else {
		t.Logf("the time alone changes: %d bytes", n)
	}
}

// NO_COLOR leaves no colour; what the screen says is the same. The end of the context ends it, and leaves the terminal
// as it was.
func TestNoColour(t *testing.T) {
	colour := regexp.MustCompile("\x1b\\[(?:[0-9;]*;)?(?:3[0-7]|38|48|9[0-7])(?:;[0-9;]*)?m")
	for _, no := range []string{"", "1"} {
		t.Setenv("TERM", "xterm-256color")
		t.Setenv("NO_COLOR", no)
		screen, tty, err := pty.Open()
		if err != nil {
			t.Skipf("no terminals here: %v", err)
		}
		_ = pty.Setsize(tty, &pty.Winsize{Rows: 24, Cols: 80})
		before, err := term.GetState(int(tty.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		out := &sink{}
		go func() { _, _ = io.Copy(out, screen) }()
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- Run(ctx, tty, tty, Options{Load: night, At: busiest.Add(time.Minute), View: top.View{Sort: "cpu"}})
		}()
		text := out.settled()
		if colour.MatchString(text) != (no == "") || !strings.Contains(text, " !reports") {
			t.Errorf("with NO_COLOR=%q it sends %q", no, text)
		}
		end()
		if err := <-ended; err != nil {
			t.Errorf("it ends with %v", err)
		}
		after, err := term.GetState(int(tty.Fd()))
		if err != nil || *after != *before {
			t.Errorf("the terminal is left as %v (%v), and was %v", after, err, before)
		}
		if text := out.settled(); !strings.Contains(text, "\x1b[?1049l") {
			t.Errorf("at the end it sends %q", text)
		}
		_ = tty.Close()
		_ = screen.Close()
	}
}
