// Package unitfiles has the actuators of what systemd keeps in files about a unit because of bulkhead: a drop-in of
// ours, and the overrides that systemd writes for properties that somebody set.
package unitfiles

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/systemd"
)

// Kinds of what systemd keeps in files about a unit because of bulkhead; the address is the unit. The value of a
// drop-in are its lines, that of overrides a HeldFiles.
const (
	KindDropIn    change.Kind = "drop-in"
	KindOverrides change.Kind = "overrides"
)

// DropInFiles reads and writes drop-ins of ours. They count once systemd has read them (Reload), which costs the same
// for one unit and for all.
type DropInFiles interface {
	DropInLines(unit string) (string, error)
	// WriteDropIn writes a drop-in of one line, or takes it away ("").
	WriteDropIn(unit, line string) error
	change.Loader
}

// OverrideFiles reads and writes overrides; they count as DropInFiles do.
type OverrideFiles interface {
	Overrides(unit string) ([]systemd.Override, error)
	WriteOverrides(unit string, want []systemd.Override) error
	change.Loader
}

// Files are those of a systemd that answers.
type Files struct{ *systemd.Manager }

// DropInLines are the lines of our drop-in, "" without one.
func (f Files) DropInLines(unit string) (string, error) {
	all, err := f.DropIns()
	i := slices.IndexFunc(all, func(d systemd.DropIn) bool { return d.Unit == unit })
	if err != nil || i < 0 {
		return "", err
	}
	return strings.Join(all[i].Lines, "\n"), nil
}

// WriteDropIn gives a unit our drop-in.
func (f Files) WriteDropIn(unit, line string) error {
	d := systemd.DropIn{Unit: unit}
	if line != "" {
		d.Lines = []string{line}
	}
	_, err := f.Manager.WriteDropIn(d)
	return err
}

// WriteOverrides gives a unit its properties.
func (f Files) WriteOverrides(unit string, want []systemd.Override) error {
	_, err := f.Manager.WriteOverrides(unit, want)
	return err
}

// Reload has systemd read what was written.
func (f Files) Reload(ctx context.Context, units ...string) error {
	return f.ReloadUnits(ctx, units...)
}

// HeldFiles are overrides as the value of a change: those of some settings, or of all.
type HeldFiles struct {
	Settings []string           `json:"settings,omitempty"`
	Files    []systemd.Override `json:"files,omitempty"`
}

// String encodes it, and Held decodes.
func (h HeldFiles) String() string {
	text, err := json.Marshal(h)
	if err != nil {
		panic(err) // strings and bytes
	}
	return string(text)
}

// Keeps says whether a change of KindOverrides changes nothing: it has what systemd was told so far recorded, which its
// undo gives back.
func Keeps(c change.Change) bool { return c.Kind == KindOverrides && c.New == c.Old }

// Held is the inverse of HeldFiles.String.
func Held(value string) (h HeldFiles, err error) {
	if value == "" {
		return h, nil
	}
	if err = json.Unmarshal([]byte(value), &h); err != nil {
		err = fmt.Errorf("decode overrides %q: %w", value, err)
	}
	return h, err
}

// DropIns is the actuator of KindDropIn.
type DropIns struct{ Files DropInFiles }

// Loader is systemd.
func (d DropIns) Loader() change.Loader { return d.Files }

// AfterBoot is the change: the file is still there.
func (DropIns) AfterBoot(c change.Change) change.Change { return c }

// Read gives the lines, "" without a drop-in.
func (d DropIns) Read(_ context.Context, unit string) (string, error) {
	return d.Files.DropInLines(unit)
}

// Write writes the file, or takes it away.
func (d DropIns) Write(_ context.Context, unit, lines string) error {
	return d.Files.WriteDropIn(unit, lines)
}

// Same compares lines.
func (DropIns) Same(_, want, got string) bool { return want == got }

// Undo writes without looking: a file that is so already is left alone.
func (d DropIns) Undo(ctx context.Context, c change.Change) (bool, error) {
	return true, d.Write(ctx, c.Addr, c.Undo)
}

// Overrides is the actuator of KindOverrides.
type Overrides struct{ Files OverrideFiles }

// Loader is systemd.
func (o Overrides) Loader() change.Loader { return o.Files }

// AfterBoot leaves out what was in /run.
func (Overrides) AfterBoot(c change.Change) change.Change {
	if h, err := Held(c.Undo); err == nil {
		c.Undo = HeldFiles{Files: systemd.Lasting(h.Files)}.String()
	}
	return c
}

// Read gives all overrides of a unit.
func (o Overrides) Read(_ context.Context, unit string) (string, error) {
	files, err := o.Files.Overrides(unit)
	return HeldFiles{Files: files}.String(), err
}

// Write makes the overrides of the settings be these; the others stay.
func (o Overrides) Write(_ context.Context, unit, value string) error {
	want, err := Held(value)
	if err != nil {
		return err
	}
	if len(want.Settings) > 0 {
		now, err := o.Files.Overrides(unit)
		if err != nil {
			return err
		}
		others := slices.DeleteFunc(now, want.names)
		want.Files = append(others, want.named(want.Files)...)
	}
	return o.Files.WriteOverrides(unit, want.Files)
}

// names says whether a value is about an override.
func (h HeldFiles) names(o systemd.Override) bool {
	return len(h.Settings) == 0 || slices.Contains(h.Settings, o.Setting())
}

// named are those of overrides that it is about, in order.
func (h HeldFiles) named(all []systemd.Override) []systemd.Override {
	all = slices.DeleteFunc(slices.Clone(all), func(o systemd.Override) bool { return !h.names(o) })
	slices.SortFunc(all, func(a, b systemd.Override) int { return strings.Compare(a.Path, b.Path) })
	return all
}

// Same compares the overrides that the wish is about.
func (Overrides) Same(_, want, got string) bool {
	w, err1 := Held(want)
	g, err2 := Held(got)
	same := func(a, b systemd.Override) bool { return a.Path == b.Path && string(a.Text) == string(b.Text) }
	return err1 == nil && err2 == nil && slices.EqualFunc(w.named(w.Files), w.named(g.Files), same)
}

// Undo gives a unit all the overrides back that it had.
func (o Overrides) Undo(ctx context.Context, c change.Change) (bool, error) {
	return true, o.Write(ctx, c.Addr, c.Undo)
}

// ErrMute says that a change goes through systemd, which could not be asked.
var ErrMute = errors.New("systemd could not be asked")

// Mute is a systemd that could not be asked: whatever needs it fails with ErrMute.
type Mute struct{}

// Overrides fails.
func (Mute) Overrides(unit string) ([]systemd.Override, error) {
	return nil, mute("read settings of", unit)
}

// WriteOverrides fails.
func (Mute) WriteOverrides(unit string, _ []systemd.Override) error {
	return mute("give settings back to", unit)
}

// DropInLines fails.
func (Mute) DropInLines(unit string) (string, error) { return "", mute("read drop-in of", unit) }

// WriteDropIn fails.
func (Mute) WriteDropIn(unit, _ string) error { return mute("write drop-in of", unit) }

// Reload fails.
func (Mute) Reload(context.Context, ...string) error { return ErrMute }

func mute(what, unit string) error { return fmt.Errorf("%s %s: %w", what, unit, ErrMute) }
