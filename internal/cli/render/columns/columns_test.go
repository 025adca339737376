package columns_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"bulkhead/internal/cli/render/columns"
)

// Names stay whole, and numbers with their units, as long as something else can give way.
func TestFitKeepsNamesWhole(t *testing.T) {
	rows := [][]string{
		{"GROUP", "LIMIT", "ASKED", "IN FORCE", "FILE", "VERDICT"},
		{"postgresql15432", "memory.max", "12 GiB", "12 GiB", "memory.limit_in_bytes", "ok"},
		{"postgresql15432", "cpu.limit", "1.5 cores", "1.5 cores", "cpu.cfs_quota_us", "ok"},
		{"reports", "cpu.weight", "weight of an idle group", "weight of an idle group", "cpu.shares", "ok"},
	}
	widths := []int{15, 10, 23, 23, 21, 7}
	columns.Fit(rows, widths, 80)
	if total := widths[0] + widths[1] + widths[2] + widths[3] + widths[4] + widths[5] + 5*columns.Gap; total > 80 {
		t.Errorf("%v come to %d", widths, total)
	}
	if widths[0] != 15 || widths[1] != 10 || widths[2] < 9 || widths[3] < 9 || widths[4] < 16 {
		t.Errorf("a name or a number is divided: %v", widths)
	}
}

// Whatever a table holds, it fits where it can, no column gets wider, and no letter is lost.
func TestFit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cells := rapid.StringMatching(`[a-z0-9._/=: ]{0,40}`)
		n := rapid.IntRange(1, 6).Draw(t, "columns")
		rows := rapid.SliceOfN(rapid.SliceOfN(cells, n, n), 1, 8).Draw(t, "rows")
		natural := make([]int, n)
		for _, row := range rows {
			for i, cell := range row {
				natural[i] = max(natural[i], utf8.RuneCountInString(cell))
			}
		}
		widths := slices.Clone(natural)
		line := rapid.IntRange(40, 120).Draw(t, "line")
		columns.Fit(rows, widths, line)
		total := columns.Gap * (n - 1)
		for i, w := range widths {
			if total += w; w > natural[i] {
				t.Fatalf("column %d gets %d wide, it has %d", i, w, natural[i])
			}
		}
		if total > max(line, 6*n+columns.Gap*(n-1)) {
			t.Fatalf("%v come to %d in a line of %d", widths, total, line)
		}
		for _, row := range rows {
			for i, rest := range row {
				var all string
				for rest != "" {
					var part string
					if part, rest, _ = columns.Cut(rest, widths[i]); utf8.RuneCountInString(part) > widths[i] {
						t.Fatalf("%q is wider than %d", part, widths[i])
					}
					all += part
				}
				if bare := strings.NewReplacer(" ", ""); bare.Replace(all) != bare.Replace(row[i]) {
					t.Fatalf("%q becomes %q", row[i], all)
				}
			}
		}
	})
}
