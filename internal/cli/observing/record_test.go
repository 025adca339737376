package observing

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/api"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/sampling"
)

var begin = time.Date(2026, 11, 20, 1, 0, 0, 0, time.Local)

// recorded is a state directory with the record of three hours, a tick each minute.
func recorded(t *testing.T) string {
	t.Helper()
	state := t.TempDir()
	r := record.New(record.Options{Dir: sampling.RecordIn(state)})
	defer r.Close()
	for i := range 180 {
		at := begin.Add(time.Duration(i) * time.Minute)
		r.Take(record.Tick{At: at, Parts: []record.Part{{Name: "loadavg", Read: at,
			Figures: []record.Figure{{Key: "bulkhead_host_load1", Value: float64(i)}}}}})
	}
	return state
}

// verb runs a verb where no agent answers.
func verb(state string, args ...string) (string, error) {
	return verbUntil(context.Background(), state, args...)
}

func verbUntil(ctx context.Context, state string, args ...string) (string, error) {
	var out bytes.Buffer
	s := Session{Out: &out, Text: &out, Stdout: &out, State: &state, JSON: new(bool), Socket: new("/nowhere"),
		Agent: func(context.Context) (*client.Client, error) { return nil, nil },
		Print: func(_ any, text func()) error { text(); return nil }}
	for _, c := range s.Look() {
		if c.Name() == args[0] {
			c.SetArgs(args[1:])
			c.SilenceErrors, c.SilenceUsage = true, true
			c.SetOut(io.Discard)
			err := c.ExecuteContext(ctx)
			return out.String(), err
		}
	}
	return "", errors.New("there is no such verb")
}

// values are the values of a dump as CSV.
func values(t *testing.T, text string) (all []string) {
	t.Helper()
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range rows[1:] {
		all = append(all, row[3])
	}
	return all
}

// An incident's hour is one file, which says elsewhere what the record of its host says, with the ten minutes before.
func TestIncident(t *testing.T) {
	state, file := recorded(t), filepath.Join(t.TempDir(), "incident")
	dump := []string{"dump", "--from", "2026-11-20 02:00", "--to", "2026-11-20 03:00"}
	if out, err := verb(state, append(dump, "--format", "record", "--into", file)...); err != nil || out != "" {
		t.Fatalf("%s, %v", out, err)
	}
	here, err := verb(state, append(dump, "--format", "csv")...)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := verb(t.TempDir(), append(dump, "--format", "csv", "--file", file)...)
	if err != nil || elsewhere != here {
		t.Errorf("the file says %s, %v, and the record %s", elsewhere, err, here)
	}
	if all := values(t, here); len(all) != 61 || all[0] != "60" || all[60] != "120" {
		t.Errorf("an hour has %d figures: %s", len(all), all)
	}
	whole, err := verb(t.TempDir(), "dump", "--format", "csv", "--file", file)
	if all := values(t, whole); err != nil || len(all) != 71 || all[0] != "50" {
		t.Errorf("the file has %d figures: %s, %v", len(all), all, err)
	}
	minute, err := verb(t.TempDir(), "dump", "--format", "csv", "--file", file, "--from", "02:10", "--to", "02:11")
	if all := values(t, minute); err != nil || len(all) != 2 || all[0] != "70" {
		t.Errorf("from 02:10 on there are %d figures: %s, %v", len(all), all, err)
	}
	says, err := verb(t.TempDir(), "record", "--file", file)
	want := "from        2026-11-20 01:50:00\nto          2026-11-20 03:00:00\nsamples     71, with 71 figures\n"
	if err != nil || !strings.HasPrefix(says, want) {
		t.Errorf("of the file it says %s, %v", says, err)
	}
	if _, err := verb(state, append(dump, "--format", "record", "--into", file)...); !errors.Is(err, os.ErrExist) ||
		api.HintOf(err) == "" {
		t.Errorf("a file that is there: %v", err)
	}
}

// A dump that is interrupted leaves no file behind that is half of one.
func TestInterrupted(t *testing.T) {
	state, file := recorded(t), filepath.Join(t.TempDir(), "incident")
	ctx, end := context.WithCancel(t.Context())
	end()
	for _, format := range []string{"csv", "json", "openmetrics", "record"} {
		_, err := verbUntil(ctx, state, "dump", "--from", "2026-11-20 01:00", "--to", "2026-11-20 03:00", "--format",
			format, "--into", file)
		if _, there := os.Lstat(file); !errors.Is(err, context.Canceled) || !errors.Is(there, os.ErrNotExist) {
			t.Errorf("%s: %v, and the file: %v", format, err, there)
		}
	}
}

// Times of day are the last ones, and --to the next one after --from; a length of time is so long before the end.
func TestBetween(t *testing.T) {
	now := time.Date(2026, 11, 20, 10, 0, 0, 0, time.Local)
	for _, c := range []struct{ from, to, want string }{
		{"", "", "20 09:00 to 20 10:00"}, {"90m", "", "20 08:30 to 20 10:00"}, {"", "03:00", "20 02:00 to 20 03:00"},
		{"90m", "03:00", "20 01:30 to 20 03:00"}, {"90m", "30m", "20 08:00 to 20 09:30"},
		{"02:00", "03:00", "20 02:00 to 20 03:00"}, {"22:00", "02:00", "19 22:00 to 20 02:00"},
		{"22:00", "23:00", "19 22:00 to 19 23:00"}, {"2026-11-18 22:00", "02:00", "18 22:00 to 19 02:00"},
		{"2026-11-19 03:00", "2026-11-19 02:00", "error"}, {"soon", "", "error"},
	} {
		from, to, err := wanted{from: c.from, to: c.to}.between(record.Reach{}, now)
		got := from.Format("02 15:04") + " to " + to.Format("02 15:04")
		if err != nil {
			got = "error"
		}
		if got != c.want {
			t.Errorf("--from %q --to %q is %s, want %s: %v", c.from, c.to, got, c.want, err)
		}
	}
}

// What cannot be answered says what to do.
func TestNothingToDump(t *testing.T) {
	state := recorded(t)
	for _, args := range [][]string{
		{"dump"}, // the last hour
		{"dump", "--from", "2026-11-20 05:00", "--to", "2026-11-20 06:00"},
		{"dump", "--from", "2026-11-20 03:00", "--to", "2026-11-20 02:00"},
		{"dump", "--from", "yesterday"}, {"dump", "--to", "25:00"}, {"dump", "--format", "xml"},
	} {
		var failed *api.Error
		if out, err := verb(state, args...); err == nil || out != "" || errors.As(err, &failed) && failed.Hint == "" {
			t.Errorf("%s: %s, %v", args, out, err)
		}
	}
	for _, args := range [][]string{{"record"}, {"dump"}} {
		var failed *api.Error
		if _, err := verb(t.TempDir(), args...); !errors.As(err, &failed) || failed.Hint == "" {
			t.Errorf("%s without a record: %v", args, err)
		}
		for _, file := range []string{"/no/such/file", "/etc/passwd"} {
			_, err := verb(state, append(args, "--file", file)...)
			if failed = nil; !errors.As(err, &failed) || !strings.Contains(err.Error(), file) || failed.Hint == "" {
				t.Errorf("%s of %s: %v", args, file, err)
			}
		}
	}
}

// Where the record is damaged the rest is written, and it is said.
func TestDumpDamaged(t *testing.T) {
	state := recorded(t)
	files, err := filepath.Glob(filepath.Join(sampling.RecordIn(state), "*.seg"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	text, err := os.ReadFile(files[2])
	if err != nil {
		t.Fatal(err)
	}
	text[len(text)-1] ^= 1
	if err := os.WriteFile(files[2], text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"csv", "json", "openmetrics", "record"} {
		file := filepath.Join(t.TempDir(), "out")
		_, err := verb(state, "dump", "--from", "2026-11-20 01:00", "--to", "2026-11-20 04:00", "--format", format,
			"--into", file)
		if !errors.Is(err, record.ErrDamaged) {
			t.Errorf("%s: %v", format, err)
		}
		if format == "record" {
			text, err := verb("", "dump", "--file", file, "--format", "csv")
			if n := len(values(t, text)); err != nil || n != 165 {
				t.Errorf("%d figures of 165 are read: %v", n, err)
			}
		} else if info, err := os.Stat(file); err != nil || info.Size() < 1000 {
			t.Errorf("%s: nothing is written: %v", format, err)
		}
	}
	if err := os.Truncate(files[3], 100); err != nil {
		t.Fatal(err)
	}
	if says, err := verb(state, "record"); err != nil || !strings.Contains(says, "damaged     1 part that") {
		t.Errorf("it says %s, %v", says, err)
	}
}

func TestShowReach(t *testing.T) {
	var out bytes.Buffer
	printReach(&out, record.Reach{From: begin, To: begin.Add(50 * time.Hour), Ticks: 36000, Figures: 1 << 22,
		Bytes: 1 << 21, Segments: 200, Damaged: 2, Gaps: []record.Gap{{From: begin.Add(time.Hour),
			To: begin.Add(2 * time.Hour)}}, Most: 256 << 20, Age: 30 * 24 * time.Hour, Error: "no space left",
		Since: begin.Add(50 * time.Hour), Lost: 1})
	const want = `from        2026-11-20 01:00:00
to          2026-11-22 03:00:00
samples     36000, with 4194304 figures
size        2 MiB, 0.50 bytes a figure
kept        256 MiB and 30 days at most, which last for at least 30 days
no record   from 2026-11-20 02:00:00 to 2026-11-20 03:00:00
damaged     2 parts that cannot be read; a dump goes without
not written since 2026-11-22 03:00:00: no space left
1 sample was lost since the agent started
`
	if got := out.String(); got != want {
		t.Errorf("shown:\n%s\nwant:\n%s", got, want)
	}
}
