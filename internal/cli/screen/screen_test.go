package screen

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
)

// said runs a function over a screen whose stdout and stderr are a terminal, and gives what came there.
func said(t *testing.T, do func(*Screen)) string {
	t.Helper()
	master, slave, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	all := make(chan string)
	go func() {
		text, _ := io.ReadAll(master) // ends with EIO when nobody has the other end any more
		all <- string(text)
	}()
	do(New(slave, slave))
	_ = slave.Close()
	return strings.ReplaceAll(<-all, "\r\n", "\n")
}

const answer = `bulkhead: no group "x"
hint: the groups are a, b
--- /etc/x
+++ /etc/x
@@ -1 +1 @@
-50
+60
  GROUP  STATE
  a      ok
  b      1 DIFFERS
`

// escapes are what steers a terminal.
var escapes = regexp.MustCompile("\x1b\\[[0-9;]*[a-zA-Z]")

// A terminal gets colours, and without them the same text: none tells anything by itself.
func TestColours(t *testing.T) {
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	write := func(s *Screen) { _, _ = io.WriteString(s.Out, answer) }
	got := said(t, write)
	for _, want := range []string{red + "-50" + plain, green + "+60" + plain, red + "1 DIFFERS" + plain,
		red + "bulkhead: no", cyan + "hint: "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	if text := escapes.ReplaceAllString(got, ""); text != answer {
		t.Errorf("without its colours it is %q", text)
	}
	for name, value := range map[string]string{"NO_COLOR": "1", "TERM": "dumb"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if got := said(t, write); got != answer {
				t.Errorf("%q", got)
			}
		})
	}
	var out, errw bytes.Buffer
	write(New(&out, &errw))
	if out.String() != answer {
		t.Errorf("no terminal: %q", out.String())
	}
}

// What takes longer than its interval says so on a terminal, and leaves nothing of that behind.
func TestWait(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	got := said(t, func(s *Screen) {
		s.every = time.Millisecond
		s.Step(7)
		end := s.Wait("bulkhead apply")
		for drawn := false; !drawn; {
			time.Sleep(time.Millisecond)
			s.mu.Lock()
			drawn = s.drawn
			s.mu.Unlock()
		}
		_, _ = io.WriteString(s.Out, "done\n")
		end()
		end()
	})
	if !strings.Contains(got, "bulkhead apply: 0 s, step 7") {
		t.Errorf("it does not say what it does: %q", got)
	}
	// What stands on the screen: of a line that is begun anew and emptied nothing is left.
	left := regexp.MustCompile("[^\n]*\r\x1b\\[K").ReplaceAllString(got, "")
	if left != "done\n" {
		t.Errorf("on the screen stays %q, of %q", left, got)
	}
	var out, errw bytes.Buffer
	s := New(&out, &errw)
	s.every = time.Millisecond
	end := s.Wait("bulkhead apply")
	time.Sleep(20 * time.Millisecond)
	end()
	if errw.Len() > 0 {
		t.Errorf("no terminal: %q", errw.String())
	}
}
