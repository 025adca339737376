package observing

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/observe/dump"
	"bulkhead/internal/observe/record"
)

// formatRecord is the format of dump that other verbs read.
const formatRecord = "record"

// wanted is what dump is to write.
type wanted struct{ file, format, into, from, to string }

// dump is the verb that writes what was recorded.
func (s Session) dump() *cobra.Command {
	var w wanted
	formats := append(slices.Clone(dump.Formats), formatRecord)
	c := &cobra.Command{
		Use:   "dump",
		Short: "what the agent recorded, for other programs and other people",
		Long: `dump writes what the agent recorded between two times: the last hour unless they are named, of a --file
all. openmetrics is the text format of Prometheus with times ("promtool tsdb create-blocks-from openmetrics" reads it),
json a line for each sample with what was read for it, csv a line for each figure. Names are those of docs/metrics.md.

record is one file to send to somebody: "bulkhead record --file" and "bulkhead dump --file" read it on any host. It
begins ten minutes earlier, so that also figures that are read seldom are known from the begin on.`,
		Example: `  bulkhead dump --from 02:00 --to 03:00 --format record --into incident
  bulkhead dump --from "2026-11-20 02:00" --format csv > night.csv
  bulkhead dump --file incident --from 02:10 --format json`,
		Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if *s.JSON && !cmd.Flags().Changed("format") {
				w.format = "json"
			}
			if !slices.Contains(formats, w.format) {
				return usage.Errorf(cmd, "--format is one of %s", strings.Join(formats, ", "))
			}
			return s.write(cmd, w)
		},
	}
	c.Flags().StringVar(&w.from, "from", "", "from what `time` on: 02:10, 2026-11-20 02:10, or 90m for 90 minutes "+
		"before the end (default an hour before it)")
	c.Flags().StringVar(&w.to, "to", "",
		"until what `time` (default what there is); 03:00 is the next one after --from")
	c.Flags().StringVar(&w.format, "format", dump.Formats[0], "`format`: "+strings.Join(formats, ", "))
	_ = c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	c.Flags().StringVar(&w.into, "into", "", "write this `file`, which must not be there yet, not standard output")
	fileFlag(c, &w.file)
	return c
}

// write writes what is wanted.
func (s Session) write(cmd *cobra.Command, w wanted) error {
	at, err := s.source(cmd.Context(), w.file)
	if err != nil {
		return err
	}
	reach, err := at.reach(cmd.Context())
	if err != nil {
		return err
	}
	from, to, err := w.between(reach, time.Now())
	switch {
	case err != nil:
		return usage.Errorf(cmd, "%w", err)
	case reach.Ticks == 0 || to.Before(reach.From) || from.After(reach.To):
		return &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("nothing is recorded between %s and %s", moment(from),
			moment(to)), Hint: "`bulkhead record` says from when to when there is something"}
	}
	if w.format == formatRecord {
		from = from.Add(-record.Before)
	}
	segments, err := at.segments(cmd.Context(), from, to)
	if err != nil {
		return err
	}
	defer segments.Close()
	read := untilDone{segments, cmd.Context()}
	return s.into(w.into, func(out io.Writer) error {
		if w.format == formatRecord {
			return rewrite(out, read, from, to)
		}
		return dump.Write(out, w.format, read, from, to)
	})
}

// untilDone reads until a context ends: who interrupts a dump gets no file that is half of one.
type untilDone struct {
	io.Reader

	ctx context.Context //nolint:containedctx // of one reading
}

func (r untilDone) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(b)
}

// between says from when to when. Times of day are the last ones before the end of what there is, which is now unless
// it is long past.
func (w wanted) between(reach record.Reach, now time.Time) (from, to time.Time, err error) {
	if reach.To.Before(now) && w.file != "" {
		now = reach.To
	}
	to = now
	ago, wrong := time.ParseDuration(w.from)
	beforeEnd := wrong == nil
	switch {
	case beforeEnd:
	case w.from != "":
		if from, err = usage.Past(w.from, now); err != nil {
			return from, to, fmt.Errorf("--from: %w", err)
		}
		if _, wrong := time.ParseDuration(w.to); wrong != nil {
			now = from.AddDate(0, 0, 1).Add(-time.Second) // a time of day is the next one
		}
	case w.file != "":
		from = reach.From
	}
	if w.to != "" {
		if to, err = usage.Past(w.to, now); err != nil {
			return from, to, fmt.Errorf("--to: %w", err)
		}
	}
	switch {
	case beforeEnd:
		from = to.Add(-ago)
	case from.IsZero():
		from = to.Add(-time.Hour)
	}
	if to.Before(from) {
		err = errors.New("--from is after --to")
	}
	return from, to, err
}

// rewrite writes the ticks between two times as a record. What is damaged is left out.
func rewrite(w io.Writer, segments io.Reader, from, to time.Time) error {
	var damaged error
	err := record.Write(w, func(yield func(record.Tick) error) error {
		err := record.Walk(segments, from, to, yield)
		if errors.Is(err, record.ErrDamaged) {
			damaged, err = err, nil
		}
		return err
	})
	return errors.Join(err, damaged)
}

// into writes a file, or standard output. A file that could not be written is taken away; one that lacks what is
// damaged stays.
func (s Session) into(name string, write func(io.Writer) error) error {
	var err error
	if name == "" {
		w := bufio.NewWriter(s.Stdout)
		err = errors.Join(write(w), w.Flush())
	} else {
		f, wrong := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if wrong != nil {
			return &api.Error{Code: api.CodeFailed, Err: wrong, Hint: "name a file that is not there yet, in a " +
				"directory that may be written"}
		}
		err = errors.Join(write(f), f.Close())
		if err != nil && !errors.Is(err, record.ErrDamaged) {
			_ = os.Remove(name)
		}
	}
	var hint string
	switch {
	case errors.Is(err, record.ErrDamaged):
		hint = "what could be read was written; `bulkhead record` says what there is"
	case errors.Is(err, dump.ErrTooMany):
		hint = "name a shorter time, or --format json or csv"
	default:
		return err
	}
	return &api.Error{Code: api.CodeFailed, Err: err, Hint: hint}
}
