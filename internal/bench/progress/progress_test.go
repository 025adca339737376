package progress

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgressLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := New(&out, false)
		p.Begin(90 * time.Second)
		p.Phase("alone")
		for range 12 {
			time.Sleep(time.Second)
			p.Rate(4321)
		}
		p.Note("round 1")
		p.Close()
		want := `0:00 of about 1:30  alone
0:05 of about 1:30  alone: 4,321 transactions/s
0:10 of about 1:30  alone: 4,321 transactions/s
round 1
`
		if out.String() != want {
			t.Errorf("progress is\n%s\nwant\n%s", out.String(), want)
		}
	})
}

func TestProgressTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := New(&out, true)
		p.Phase("filling")
		time.Sleep(1500 * time.Millisecond)
		p.Note("a note")
		p.Close()
		got := out.String()
		if strings.Count(got, "\n") != 1 {
			t.Errorf("progress is %q: only the note may end a line", got)
		}
		if !strings.HasSuffix(got, "\r\x1b[K") {
			t.Errorf("progress is %q: the line is not cleared at the end", got)
		}
		if want := "\r\x1b[K0:01  filling"; !strings.Contains(got, want) {
			t.Errorf("progress is %q: the line was not rewritten after a second", got)
		}
		if want := "\r\x1b[Ka note\n"; !strings.Contains(got, want) {
			t.Errorf("progress is %q: the note does not take the line's place", got)
		}
	})
}
