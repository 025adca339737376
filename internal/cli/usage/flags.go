package usage

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// FlagError says in plain words what is wrong with the value of a flag.
func FlagError(err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return err
	}
	f := invalid.GetFlag()
	if f.Value.Type() == "boolfunc" {
		return errors.Unwrap(err)
	}
	wanted := map[string]string{"int": "a whole number", "duration": "a time such as 90s, 10m or 2h",
		"time": "a time such as \"2026-11-28 22:30\" or 2026-11-28T22:30:00+01:00"}[f.Value.Type()]
	if wanted == "" {
		return err
	}
	return fmt.Errorf("--%s: %q is not %s", f.Name, invalid.GetValue(), wanted)
}

// span is a flag that holds a time longer than none: a freeze of -5m or an override of 0s is a slip.
type span time.Duration

func (s *span) String() string {
	if *s == 0 {
		return ""
	}
	return time.Duration(*s).String()
}

// Type is the word for it in the usage.
func (s *span) Type() string { return "duration" }

// Set takes "90s", "10m", "2h30m".
func (s *span) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return err
	}
	if d <= 0 {
		return errors.New("it must be longer than none")
	}
	*s = span(d)
	return nil
}

// SpanFlag adds a flag that takes a length of time longer than none.
func SpanFlag(c *cobra.Command, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	c.Flags().Var((*span)(p), name, usage)
}

// MomentFlag adds a flag for a point in time.
func MomentFlag(c *cobra.Command, p *time.Time, name, usage string) {
	c.Flags().Var((*momentValue)(p), name, usage)
}

// Past reads a point in time that was before now: as MomentFlag takes it, or "02:10" for the last time that it was so
// late, or "90m" for so long ago.
func Past(text string, now time.Time) (time.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago), nil
	}
	for _, form := range []string{"15:04", time.TimeOnly} {
		clock, err := time.Parse(form, text)
		if err != nil {
			continue
		}
		now = now.Local()
		at := time.Date(now.Year(), now.Month(), now.Day(), clock.Hour(), clock.Minute(), clock.Second(), 0, time.Local)
		if at.After(now) {
			at = at.AddDate(0, 0, -1)
		}
		return at, nil
	}
	var at momentValue
	if at.Set(text) != nil {
		return time.Time{}, errors.New("not a time: write 02:10, 2026-11-20 02:10, or 90m for 90 minutes ago")
	}
	return time.Time(at), nil
}

// momentValue is a point in time on the command line.
type momentValue time.Time

// moments are the forms that a point in time may have; without a zone it is the host's.
var moments = []string{time.RFC3339, "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02T15:04", time.DateOnly}

func (m *momentValue) String() string {
	if time.Time(*m).IsZero() {
		return ""
	}
	return time.Time(*m).Format(time.RFC3339)
}

func (*momentValue) Type() string { return "time" }

func (m *momentValue) Set(text string) error {
	for _, form := range moments {
		if t, err := time.ParseInLocation(form, text, time.Local); err == nil {
			*m = momentValue(t)
			return nil
		}
	}
	return errors.New("not a time")
}
