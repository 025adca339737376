package proof

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// WriteDocument writes the results that are kept beside a document as one Markdown file, and their pictures beside it.
// texts are what the scenarios are now, in the document's order.
func WriteDocument(path string, texts []Text) error {
	all, err := kept(path, texts)
	if err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	dir := besides(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Proof\n\nPut together by `bulkhead bench document` from the results in [%s](%[1]s), each of "+
		"which has its own commit, date and machine; [bench.md](bench.md) says what the words mean. Nothing here was "+
		"typed by hand.\n\n", filepath.Base(dir))
	writeOverview(&b, all)
	writeClaims(&b, all)
	for _, e := range all {
		if e.Result == nil {
			continue
		}
		e.writeSection(&b, filepath.Base(dir))
		pictures := e.Result.Pictures()
		for _, name := range e.Result.documentPictures() {
			picture := filepath.Join(dir, e.Result.Scenario+"-"+name+".svg")
			if err := replace(picture, []byte(pictures[name]+"\n")); err != nil {
				return fmt.Errorf("write the document: %w", err)
			}
		}
	}
	if err := replace(path, []byte(strings.TrimRight(b.String(), "\n")+"\n")); err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	return nil
}

// writeOverview says where and when, which scenarios held, and how far the machines could be trusted.
func writeOverview(b *strings.Builder, all []entry) {
	versions := map[string]bool{}
	var machines []string
	noisy, ran := 0, 0
	for _, e := range all {
		if e.Result == nil {
			continue
		}
		ran++
		if !Quiet(e.Result.Control) {
			noisy++
		}
		if !slices.Contains(machines, e.Result.Machine) {
			machines = append(machines, e.Result.Machine)
		}
		for _, v := range e.Result.Versions {
			versions[v] = true
		}
	}
	for i, m := range machines {
		fmt.Fprintf(b, "Machine %d: %s.\n", i+1, m)
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
	b.WriteString("\n| scenario | repeats | commit | begun (UTC) | machine | rounds | load before | " +
		"alone against alone | result |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, e := range all {
		switch r := e.Result; {
		case r == nil:
			fmt.Fprintf(b, "| %s | %s | | | | | | | %s |\n", e.Text.Scenario, cell(e.Document), e.missing())
		default:
			wanting := e.wanting()
			if wanting != "" {
				wanting = "; " + wanting
			}
			load, _, _ := strings.Cut(r.Load, " ")
			fmt.Fprintf(b, "| [%s](#%s) | %s | %s | %s | %d | %d of %d s | %s | %s – %s | %s%s |\n", r.Scenario,
				r.Scenario, cell(r.Document), r.commit(), r.begun(), 1+slices.Index(machines, r.Machine), r.Rounds,
				r.Seconds, load, percent(float64(r.Control.Low)), percent(float64(r.Control.High)), r.tally(), wanting)
		}
	}
	b.WriteString("\n")
}

// missing is why there is no result.
func (e entry) missing() string {
	if e.LeftOut != "" {
		return "left out: " + cell(e.LeftOut)
	}
	return e.wanting()
}

// experiment is the number of an experiment of the documents: 9 of "E9 and E10".
var experiment = regexp.MustCompile(`\bE(\d+)`)

// writeClaims sets every figure of the documents beside what was measured, in the order of their experiments.
func writeClaims(b *strings.Builder, all []entry) {
	number := func(e entry) int {
		if m := experiment.FindStringSubmatch(e.Document); m != nil {
			n, _ := strconv.Atoi(m[1])
			return n
		}
		return math.MaxInt
	}
	all = slices.DeleteFunc(slices.Clone(all), func(e entry) bool { return e.Document == "" })
	if len(all) == 0 {
		return
	}
	slices.SortStableFunc(all, func(x, y entry) int { return cmp.Compare(number(x), number(y)) })
	b.WriteString("## Beside the documents\n\n| repeats | scenario | shape | mechanism | document | measured | " +
		"verdict |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, e := range all {
		r := e.Result
		if r == nil {
			fmt.Fprintf(b, "| %s | %s | | %s | %s | | %s |\n", cell(e.Document), e.Text.Scenario,
				cell(limits(e.Mechanism)), cell(e.Reports), e.missing())
			continue
		}
		claims := 0
		for _, f := range r.Shape {
			if f.Document == nil {
				continue
			}
			claims++
			fmt.Fprintf(b, "| %s | [%s](#%s) | %s | %s | %s | %s | %s |\n", cell(r.Document), r.Scenario, r.Scenario,
				cell(f.What), cell(r.mechanism(f)), cell(f.Reports), f.measured(), f.Verdict)
		}
		if claims == 0 {
			fmt.Fprintf(b, "| %s | [%s](#%s) | | %s | no figure | | %s |\n", cell(r.Document), r.Scenario, r.Scenario,
				cell(r.mechanism(Finding{Document: &Claim{}})), r.tally())
		}
	}
	b.WriteString("\n")
}

// mechanism is what limits where a finding repeats a document: "same", or what else. Why is in the result's Mechanism.
func (r *Result) mechanism(f Finding) string {
	switch {
	case f.Document == nil:
		return ""
	case f.Mechanism != "":
		return f.Mechanism
	}
	return limits(r.Mechanism)
}

// limits is what limits here by the mechanism of a result.
func limits(mechanism string) string {
	if _, here, other := strings.Cut(mechanism, "; here "); other {
		ours, _, _ := strings.Cut(here, ": ")
		return ours
	}
	return "same"
}

// commit is that of the program, as many digits as tell it from all others.
func (r *Result) commit() string {
	const digits = 8
	if r.Commit == "" {
		return "not known"
	}
	return r.Commit[:min(digits, len(r.Commit))]
}

func (r *Result) begun() string { return r.Started.UTC().Format("2006-01-02 15:04") }

// cell makes text fit into a table of Markdown.
func cell(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return strings.ReplaceAll(text, "|", "\\|")
}

// writeSection writes one result.
func (e entry) writeSection(b *strings.Builder, pictures string) {
	r := e.Result
	fmt.Fprintf(b, "## %s\n\n%s.", r.Scenario, strings.ToUpper(r.Title[:1])+r.Title[1:])
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
	fmt.Fprintf(b, "\n\nMeasured %s UTC at commit %s, %s of %d s: %s.", r.begun(), r.commit(),
		Plural(r.Rounds, "round"), r.Seconds, r.Machine)
	if wanting := e.wanting(); wanting != "" {
		fmt.Fprintf(b, " **To be measured again: %s.**", wanting)
	}
	b.WriteString("\n\n| shape | mechanism | document | measured | lowest – highest | wanted | verdict |\n" +
		"| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, f := range r.Shape {
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s – %s | %s | %s |\n", cell(f.What), cell(r.mechanism(f)),
			cell(f.Reports), f.measured(), f.text(f.Measured.Low), f.text(f.Measured.High), f.wanted(), f.Verdict)
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
	r.writeMatrix(b)
	r.writeCalls(b)
	r.writeRemarks(b)
	for _, name := range r.documentPictures() {
		fmt.Fprintf(b, "\n![%s: %s](%s/%s-%s.svg)\n", r.Scenario, name, pictures, r.Scenario, name)
	}
	b.WriteString("\n")
}

// judged are words of measures that are about the histogram of response times.
var judged = regexp.MustCompile(`(\w+)\.(?:within_10ms|time_50_to_100ms)\b`)

// writeCalls writes the histogram of response times of arms of which a shape judges it.
func (r *Result) writeCalls(b *strings.Builder) {
	for i := range r.Arms {
		a := &r.Arms[i]
		if !slices.ContainsFunc(r.Shape, func(f Finding) bool {
			m := judged.FindStringSubmatch(f.Measure)
			return m != nil && m[1] == a.Name
		}) {
			continue
		}
		fmt.Fprintf(b, "\nResponse times, %s:\n\n| response time | duration | %% | calls | mean | min | max |\n"+
			"| --- | --- | --- | --- | --- | --- | --- |\n", a.Text)
		for _, p := range a.Responses {
			fmt.Fprintf(b, "| %s |\n", strings.Join(p.cells(), " | "))
		}
	}
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
