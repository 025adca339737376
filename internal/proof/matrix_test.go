package proof

import (
	"strings"
	"testing"
)

// The cells of a matrix are a table, with what proved their page size, and curves over clients and over sizes from the
// left to the right.
func TestMatrix(t *testing.T) {
	r := &Result{Scenario: "m", Title: "a matrix", Settings: "work_mem=8MB", Control: Range{100, 100, 100}, Rounds: 1}
	for _, c := range []struct {
		page    string
		size    int
		clients int
		tps     float64
	}{{"4KiB", 600, 32, 700}, {"4KiB", 300, 32, 900}, {"4KiB", 300, 2, 500}, {"2MiB", 300, 2, 510},
		{"2MiB", 300, 32, 990}} {
		r.Arms = append(r.Arms, Arm{Text: c.page, Rounds: []Round{{}}, Evidence: "its smaps & the server",
			Cell: &Cell{Page: c.page, Size: map[int]string{300: "fits", 600: "spills"}[c.size], SizeMiB: c.size,
				Clients: c.clients},
			Figures: map[string]Range{"tps": {Figure(c.tps), Figure(c.tps - 10), Figure(c.tps + 10)},
				"db.page_tables": {1 << 20, 1 << 20, 1 << 20}}})
	}
	r.Arms = append(r.Arms, Arm{Name: "again", Rounds: []Round{{}}, Cell: &Cell{}},
		Arm{Omitted: "no pages", Cell: &Cell{Page: "1GiB"}})
	rows := r.cellRows()
	const first = "4KiB|spills, 600 MiB|32|700|690|710|1 MiB|-|its smaps & the server"
	if len(rows) != 6 || strings.Join(rows[1], "|") != first {
		t.Errorf("%q", rows)
	}
	for _, write := range []func() string{
		func() string { var b strings.Builder; r.writeCells(&b); return b.String() },
		func() string { var b strings.Builder; r.writeMatrix(&b); return b.String() },
		func() string { var b strings.Builder; _ = r.WritePage(&b); return b.String() },
	} {
		if text := write(); !strings.Contains(text, "work_mem=8MB") || !strings.Contains(text, "spills, 600 MiB") {
			t.Errorf("%s", text)
		}
	}
	names := r.documentPictures()
	if strings.Join(names, " ") != "clients-2 clients-32 size-fits size-spills" {
		t.Errorf("pictures %v", names)
	}
	plots := matrixPlots(r)
	if text := plots["size-fits"]; strings.Count(text, "<polygon") != 2 || !strings.Contains(text, "2MiB") {
		t.Errorf("two curves with bands: %s", text)
	}
	if names := (&Result{}).documentPictures(); strings.Join(names, " ") != "arms rate" {
		t.Errorf("without a matrix: %v", names)
	}
}

// Of a Redis the table has what it copied while it saved, and how long a fork took.
func TestMatrixThatSaves(t *testing.T) {
	r := &Result{Arms: []Arm{{Rounds: []Round{{}}, Evidence: "smaps", Cell: &Cell{Page: "transparent", Size: "data"},
		Figures: map[string]Range{"p99": {2, 2, 2}, "db.copied": {4 << 20, 4 << 20, 4 << 20}, "db.fork": {3, 3, 3}}}}}
	var b strings.Builder
	r.writeMatrix(&b)
	if text := b.String(); !strings.Contains(text, "| p99 | copied | fork | proved by |") ||
		!strings.Contains(text, "| 2.00 ms | 4 MiB | 3.00 ms | smaps |") {
		t.Errorf("%s", text)
	}
}
