package observe

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/metrics"
)

var update = flag.Bool("update", false, "write docs/metrics.md anew")

// Every figure that a Usage has is shown by one row, or there is a reason why it is not.
func TestEveryFieldIsShown(t *testing.T) {
	rows := map[string][]string{}
	for _, r := range Table {
		for _, f := range r.Fields {
			rows[f.Field.Name] = append(rows[f.Field.Name], r.Name)
			if f.Field.Kind != r.Kind {
				t.Errorf("%s is a %s and shows %s, a %s", r.Name, r.Kind, f.Field.Name, f.Field.Kind)
			}
			labels := len(f.Labels)
			if strings.HasPrefix(f.Field.Name, "io[].") {
				labels++
			}
			if labels != len(r.Labels) {
				t.Errorf("%s shows %s with %d labels of %v", r.Name, f.Field.Name, labels, r.Labels)
			}
		}
	}
	for _, f := range metrics.Fields {
		last := f.Name[strings.LastIndex(f.Name, ".")+1:]
		want := 1
		if notShown[last] != "" {
			want = 0
		}
		if len(rows[f.Name]) != want {
			t.Errorf("%s is shown by %q", f.Name, rows[f.Name])
		}
	}
}

// Names are as Prometheus wants them, and no label can have as many values as there are processes.
func TestRows(t *testing.T) {
	name := regexp.MustCompile(`^bulkhead_[a-z0-9_]+$`)
	labels := []string{"group", "role", "engine", "mode", "kind", "device", "direction", "resource", "state", "knob",
		"version", "collector", "cpu", "cpus", "node", "event", "mount", "release", "machine", "counter", "up_to",
		"signal", "pool", "dataset", "window", "why", "blamed", "suspect", "pages"}
	seen := map[string]bool{}
	for _, r := range slices.Concat(Table, Own) {
		switch {
		case seen[r.Name] || !name.MatchString(r.Name):
			t.Errorf("%s is there twice, or no name", r.Name)
		case strings.HasSuffix(r.Name, "_total") != (r.Kind == metrics.Counter):
			t.Errorf("%s is a %s", r.Name, r.Kind)
		case !strings.HasSuffix(r.Help, "."):
			t.Errorf("the help of %s is no sentence", r.Name)
		case strings.HasPrefix(r.Name, "bulkhead_group_") != r.OfGroup():
			t.Errorf("%s has figures of groups: %v", r.Name, r.OfGroup())
		}
		seen[r.Name] = true
		for _, l := range r.AllLabels() {
			if !slices.Contains(labels, l) {
				t.Errorf("%s has the label %s, which nobody thought over", r.Name, l)
			}
		}
		if ways := count(r.group != nil, r.sample != nil, len(r.Fields) > 0); ways != 1 && r.Part != "" {
			t.Errorf("%s has its figures from %d sources", r.Name, ways)
		}
	}
}

func count(all ...bool) (n int) {
	for _, is := range all {
		if is {
			n++
		}
	}
	return n
}

// A group with everything that a kernel tells, on three disks, with one interface and eight limits, fits.
func TestSeriesOfAGroup(t *testing.T) {
	s := example(t)
	n := 0
	for i := range Table {
		if r := &Table[i]; r.OfGroup() && !r.Recorded {
			r.Each(s, func(_ float64, labels ...string) {
				if labels[0] == s.Groups[0].Group {
					n++
				}
			})
		}
	}
	if n < 60 || n > 70 {
		t.Errorf("it has %d series", n)
	}
}

// example is a sample whose first group has every figure that there is.
func example(t *testing.T) *Sample {
	t.Helper()
	text, err := os.ReadFile("observetest/sample.json")
	s := &Sample{}
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The documentation is made from the table.
func TestDocumentation(t *testing.T) {
	const file = "../../docs/metrics.md"
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const mark = "<!-- the table: go test ./internal/observe -update -->\n"
	before, _, found := strings.Cut(string(got), mark)
	if !found {
		t.Fatalf("%s has no line %q", file, mark)
	}
	want := before + mark + documentation()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if string(got) != want {
		t.Errorf("%s is not what the table says: go test ./internal/observe -update", file)
	}
}

func documentation() string {
	var b strings.Builder
	rows := func(title string, all []Row) {
		fmt.Fprintf(&b, "\n## %s\n\n| metric | type | labels | what | from |\n| --- | --- | --- | --- | --- |\n", title)
		for _, r := range all {
			labels := strings.Join(r.Labels, ", ")
			if r.Recorded {
				r.Help += " In the record alone."
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.Name, r.Kind, labels,
				strings.TrimSuffix(r.Help, "."), sourceOf(r))
		}
	}
	rows("Always", Own)
	for _, p := range Parts {
		var of []Row
		for _, r := range Table {
			if r.Part == p {
				of = append(of, r)
			}
		}
		c := Collectors[slices.IndexFunc(Collectors, func(c Collector) bool { return c.Name == p })]
		rows(fmt.Sprintf("`%s`, `%s`", p, c.Tier), of)
	}
	return b.String()
}

// sourceOf says where a row's figures are from: of both versions of cgroups, each file once.
func sourceOf(r Row) string {
	if len(r.Fields) == 0 {
		return r.Source
	}
	var texts []string
	for _, version := range []string{"v1", "v2"} {
		var files []string
		for _, f := range r.Fields {
			from := f.Field.V1
			if version == "v2" {
				from = f.Field.V2
			}
			text := from.File
			if from.Since != "" {
				text += " (" + from.Since + ")"
			}
			if text != "" && !slices.Contains(files, text) {
				files = append(files, text)
			}
		}
		if len(files) > 0 {
			texts = append(texts, version+": "+strings.Join(files, ", "))
		}
	}
	return strings.Join(texts, "; ")
}

// Every collector has a row, and every row a collector; the example has a figure of each row.
func TestEveryCollectorIsShown(t *testing.T) {
	s := example(t)
	shown := map[Part]bool{}
	for i := range Table {
		r := &Table[i]
		shown[r.Part] = true
		n := 0
		r.Each(s, func(_ float64, labels ...string) {
			if n++; len(labels) != len(r.AllLabels()) {
				t.Errorf("%s tells %q for the labels %q", r.Name, labels, r.AllLabels())
			}
		})
		if n == 0 {
			t.Errorf("the example has no figure of %s", r.Name)
		}
	}
	for _, p := range Parts {
		if !shown[p] {
			t.Errorf("no row is of %s", p)
		}
		delete(shown, p)
	}
	for p := range shown {
		t.Errorf("rows are of %s, which no collector reads", p)
	}
	for i := range s.Collectors { // what is off or old is not shown
		s.Collectors[i].Told = false
	}
	for i := range Table {
		Table[i].Each(s, func(float64, ...string) { t.Errorf("%s is shown without its collector", Table[i].Name) })
	}
}

// The names of the document that asks for them, and what node_exporter has on by itself there.
func TestNamesOfTheHost(t *testing.T) {
	for _, name := range []string{"diskstats", "filefd", "filesystem", "loadavg", "meminfo", "netdev", "netstat",
		"stat", "time", "uname", "vmstat", "meminfo_numa"} {
		if got := PartsOf(name); len(got) != 1 {
			t.Errorf("%s stands for %v", name, got)
		}
	}
}
