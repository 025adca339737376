// Package warnings has the logger of verbs: who types one reads sentences, not a log.
package warnings

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"bulkhead/internal/cli/render"
)

// Logger gives a logger of which only warnings and errors are written, each as a sentence. Several goroutines may
// log at once.
func Logger(out io.Writer) *slog.Logger { return slog.New(&warnings{out: out}) }

type warnings struct {
	out   io.Writer
	attrs []slog.Attr
}

// Enabled implements slog.Handler.
func (*warnings) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// Handle implements slog.Handler.
func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	var parts []string
	add := func(a slog.Attr) bool {
		if a.Key == "err" {
			parts = append(parts, a.Value.String())
		} else {
			parts = append(parts, a.Key+" "+a.Value.String())
		}
		return true
	}
	for _, a := range w.attrs {
		add(a)
	}
	r.Attrs(add)
	text := "warning: " + r.Message
	if len(parts) > 0 {
		text = fmt.Sprintf("%s: %s", text, strings.Join(parts, ", "))
	}
	render.Println(w.out, text)
	return nil
}

// WithAttrs implements slog.Handler.
func (w *warnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &warnings{w.out, append(w.attrs[:len(w.attrs):len(w.attrs)], attrs...)}
}

// WithGroup implements slog.Handler.
func (w *warnings) WithGroup(string) slog.Handler { return w }
