package advice

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/state"
)

// What is said of how to measure: a scenario behind --bench is no rule, and what makes no sense is refused before the
// host is looked at. With --dry-run nothing is measured, and how long it would take is said.
func TestBenchFlags(t *testing.T) {
	for _, tt := range []struct {
		args   string
		rules  []string
		says   string // a part of what is said of the time
		refuse string
	}{
		{"MEM-01 --bench", []string{"MEM-01"}, "in 7 rounds without and with the change, 15 times 10 s, about 2:53",
			""},
		{"MEM-01 --bench commits-postgres MEM-12", []string{"MEM-01", "MEM-12"}, "15 times 10 s", ""},
		{"MEM-01 --bench=demo --rounds 2 --seconds 3", []string{"MEM-01"}, "in 2 rounds without and with the change, " +
			"5 times 3 s", ""},
		{"MEM-01", []string{"MEM-01"}, "", ""},
		{"MEM-01 --bench --instance a --dsn a=mysql://app@localhost/", []string{"MEM-01"}, "about 2:45", ""},
		{"MEM-01 --rounds 3", nil, "", "give --bench, too"},
		{"MEM-01 --instance a", nil, "", "give --bench, too"},
		{"MEM-01 --bench=no-such", nil, "", "no such scenario"},
		{"MEM-01 --bench --rounds 0", nil, "", "count from 1"},
		{"MEM-01 --bench --instance a", nil, "", "--dsn a=@FILE"},
		{"MEM-01 --bench --instance a --dir /data", nil, "", "takes no scenario and no --dir"},
	} {
		var b benchFlags
		var dsn []string
		c := &cobra.Command{Use: "apply"}
		b.add(c)
		c.Flags().StringArrayVar(&dsn, "dsn", nil, "")
		if err := c.ParseFlags(strings.Fields(tt.args)); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		c.SetErr(&said)
		changed := 0
		s := Session{Progress: io.Discard, Change: func(*cobra.Command, api.Request) error { changed++; return nil }}
		rules, change, err := s.measured(c, c.Flags().Args(), b, dsn)
		if tt.refuse != "" {
			if err == nil || !strings.Contains(err.Error(), tt.refuse) || usage.HintOf(err) == "" {
				t.Errorf("%s: %v", tt.args, err)
			}
			continue
		}
		if err != nil || !slices.Equal(rules, tt.rules) {
			t.Errorf("%s: rules %q, %v", tt.args, rules, err)
			continue
		}
		err = change(c, api.Request{DryRun: true, Tune: []state.Tuned{{Rule: "MEM-01"}}})
		if err != nil || changed != 1 || !strings.Contains(said.String(), tt.says) ||
			(said.Len() == 0) != (tt.says == "") {
			t.Errorf("%s: %v, changed %d times, it says %q", tt.args, err, changed, &said)
		}
	}
}
