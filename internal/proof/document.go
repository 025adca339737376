package proof

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// documentPictures are the plots that a document shows of each scenario; the page has them all.
var documentPictures = []string{"arms", "rate"}

// WriteDocument writes several results as one Markdown file, and their pictures into a directory of its name beside it.
// how is the command that made them, and commit what its program was built from, "" where that is not known.
func WriteDocument(path, how, commit string, all []Outcome) error {
	dir := strings.TrimSuffix(path, filepath.Ext(path))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	var b strings.Builder
	b.WriteString("# Proof\n\n")
	if how = "`" + how + "`"; commit != "" {
		how += " at commit " + commit
	}
	fmt.Fprintf(&b, "Made by %s; [bench.md](bench.md) says what the words mean. Nothing here was typed by hand.\n\n",
		how)
	writeOverview(&b, all)
	for _, o := range all {
		if o.Result == nil {
			continue
		}
		o.Result.writeSection(&b, filepath.Base(dir))
		pictures := o.Result.Pictures()
		for _, name := range documentPictures {
			if err := replace(filepath.Join(dir, o.Scenario+"-"+name+".svg"), []byte(pictures[name]+"\n")); err != nil {
				return fmt.Errorf("write the document: %w", err)
			}
		}
	}
	if err := replace(path, []byte(b.String())); err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	return nil
}

// mark is a line of a document that no reader sees: which text of a scenario the figures are of.
func mark(scenario, digest string) string {
	return fmt.Sprintf("<!-- figures of %s, text %s -->", scenario, digest)
}

// Outdated gives the scenarios whose text, by its digest, is another than that of the figures in a document, or of
// which it has none.
func Outdated(document string, digests map[string]string) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(digests)) {
		if !strings.Contains(document, mark(name, digests[name])) {
			names = append(names, name)
		}
	}
	return names
}

// writeOverview says where and when, which scenarios held, and how far the machine could be trusted.
func writeOverview(b *strings.Builder, all []Outcome) {
	versions := map[string]bool{}
	noisy := 0
	ran := 0
	for _, o := range all {
		if o.Result == nil {
			continue
		}
		if ran == 0 {
			fmt.Fprintf(b, "Machine: %s. Begun %s.\n", o.Result.Machine,
				o.Result.Started.Format("2006-01-02 15:04 MST"))
		}
		ran++
		if !Quiet(o.Result.Control) {
			noisy++
		}
		for _, v := range o.Result.Versions {
			versions[v] = true
		}
	}
	if len(versions) > 0 {
		fmt.Fprintf(b, "Servers: %s.\n", strings.Join(slices.Sorted(maps.Keys(versions)), ", "))
	}
	if noisy > 0 {
		fmt.Fprintf(b,
			"\n**The machine was not quiet.** In %d of %d scenarios the database alone differed from itself, within "+
				"one round, by more than a tenth "+
				"(column \"alone against alone\"), also when they were run again: nothing of them is decided.\n",
			noisy, ran)
	}
	b.WriteString("\n| scenario | repeats | rounds | load before | alone against alone | result |\n" +
		"| --- | --- | --- | --- | --- | --- |\n")
	for _, o := range all {
		switch {
		case o.LeftOut != "":
			fmt.Fprintf(b, "| %s | | | | | left out: %s |\n", o.Scenario, cell(o.LeftOut))
		case o.Result == nil:
			fmt.Fprintf(b, "| %s | | | | | failed: %s |\n", o.Scenario, cell(o.Failed))
		default:
			r := o.Result
			smoke := ""
			if r.Smoke {
				smoke = " (smoke)"
			}
			load, _, _ := strings.Cut(r.Load, " ")
			fmt.Fprintf(b, "| [%s](#%s) | %s | %d of %d s | %s | %s – %s | %s%s |\n", r.Scenario,
				r.Scenario, cell(r.Document), r.Rounds, r.Seconds,
				load, percent(float64(r.Control.Low)), percent(float64(r.Control.High)), r.tally(), smoke)
		}
	}
	b.WriteString("\n")
}

// cell makes text fit into a table of Markdown.
func cell(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return strings.ReplaceAll(text, "|", "\\|")
}

// writeSection writes one result.
func (r *Result) writeSection(b *strings.Builder, pictures string) {
	fmt.Fprintf(b, "## %s\n\n%s\n\n%s.", r.Scenario, mark(r.Scenario, r.Digest),
		strings.ToUpper(r.Title[:1])+r.Title[1:])
	if r.Document != "" {
		fmt.Fprintf(b, " Repeats %s, which reports: %s. Mechanism: %s.", r.Document, r.Reports,
			r.Mechanism)
	}
	if len(r.Scale) > 0 {
		parts := make([]string, len(r.Scale))
		for i, s := range r.Scale {
			parts[i] = "`" + s.text() + "`"
		}
		fmt.Fprintf(b, " Scale: %s.", strings.Join(parts, ", "))
	}
	b.WriteString("\n\n| shape | document | measured | lowest – highest | wanted | verdict |\n" +
		"| --- | --- | --- | --- | --- | --- |\n")
	for _, f := range r.Shape {
		fmt.Fprintf(b, "| %s | %s | %s | %s – %s | %s | %s |\n", cell(f.What), cell(f.Reports), f.measured(),
			f.text(f.Measured.Low), f.text(f.Measured.High), f.wanted(), f.Verdict)
	}
	b.WriteString("\n| arm | per second | p50 | p95 | p99 | p99.9 | isolation | isol-01 |\n" +
		"| --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range r.Arms {
		a := &r.Arms[i]
		for _, l := range r.loadsOf(a) {
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", cell(l.text), Number(float64(l.tps.Median)),
				milliseconds(l.of("p50")), milliseconds(l.of("p95")), milliseconds(l.of("p99")),
				milliseconds(l.of("p999")), percent(l.of("isolation")), percent(l.of("isol01")))
		}
	}
	r.writeRemarks(b)
	for _, name := range documentPictures {
		fmt.Fprintf(b, "\n![%s: %s](%s/%s-%s.svg)\n", r.Scenario, name, pictures, r.Scenario, name)
	}
	b.WriteString("\n")
}

// writeRemarks writes why arms did not run and what the host does not hold.
func (r *Result) writeRemarks(b *strings.Builder) {
	var remarks []string
	for _, a := range r.Arms {
		if a.Omitted != "" {
			remarks = append(remarks, "Left out, "+a.Text+": "+a.Omitted)
		}
	}
	remarks = append(remarks, r.contradictions()...)
	for _, note := range r.Notes {
		remarks = append(remarks, "Not held by this host, or not wholly: "+note)
	}
	if len(remarks) == 0 {
		return
	}
	b.WriteString("\n")
	for _, text := range remarks {
		fmt.Fprintf(b, "- %s\n", oneLine(text))
	}
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
