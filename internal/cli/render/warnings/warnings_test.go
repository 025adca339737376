package warnings_test

import (
	"bytes"
	"errors"
	"testing"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/render/warnings"
)

// What a program would log is a warning in words, in the width of the terminal.
func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log := warnings.Logger(render.Printable(&out, 60))
	log.Info("listening")
	log.With("verb", "apply").Warn("a freeze that is over could not be ended", "err", errors.New("no space left"))
	want := "warning: a freeze that is over could not be ended: verb\n  apply, no space left\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
