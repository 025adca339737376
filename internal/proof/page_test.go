package proof

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// example is a result with two arms, figures that were not measured, and names that HTML must not take for tags.
func example() *Result {
	arm := func(name, text string, rates ...float64) Arm {
		a := Arm{Name: name, Text: text, Figures: map[string]Range{}, Histogram: []Bucket{{0.5, 90}, {20, 10}}}
		for i, tps := range rates {
			r := Round{Figures: map[string]Figure{"tps": Figure(tps)},
				Groups: map[string][]GroupSecond{"mysql": {{At: 1, CPU: 1.5, Memory: 1 << 20, Swap: Figure(nan),
					Read: Figure(nan), Written: 5}}}}
			for s := range 5 {
				r.Seconds = append(r.Seconds, Second{At: float64(s + 1), TPS: tps + float64(s*i), Latency: Figure(nan)})
			}
			a.Rounds = append(a.Rounds, r)
		}
		a.Figures["tps"], a.Figures["p95"], a.Figures["isolation"] = Over(rates), Range{20, 20, 20}, Range{98, 90, 101}
		a.Figures["mysql.cpu"], a.Figures["mysql.swap"] = Range{1.5, 1, 2}, Range{Figure(nan), Figure(nan), Figure(nan)}
		a.Responses = Respond(a.Histogram)
		return a
	}
	held := arm("held", "held <under> the policy", 90, 110, 100)
	held.Rounds[0].Phases = []Mark{{At: 2, Name: "capped", Ready: 2.5}}
	return &Result{
		Scenario: "example", Title: "an <example>", Document: "E1", Reports: "a half",
		Started: time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC),
		Took:    time.Minute, Machine: "2 CPUs", Load: "0.1", Versions: map[string]string{"db": "1"}, Rounds: 3,
		Seconds: 5,
		Scale:   []Scale{{Name: "hogs", Formula: "8*cpus", Value: 16, Document: "16"}}, Control: Range{100, 97, 103},
		Arms: []Arm{arm("alone", "alone", 100, 104, 98), held,
			{Name: "theirs", Text: "theirs", Omitted: "no such controller"}},
		Shape: []Finding{{What: "it is kept", Measure: "held.isolation", Unit: "%", Measured: Range{98, 90, 101},
			Least: 95, Most: Figure(nan), Verdict: Holds, Held: true}},
		Policy: map[string]string{"ours": "version: 1"}, Held: true,
	}
}

// Every plot is well-formed XML without a number that is none, and its texts are escaped.
func TestPictures(t *testing.T) {
	pictures := example().Pictures()
	for _, name := range []string{"rate", "latency", "arms", "isolation", "use-cpu"} {
		if pictures[name] == "" {
			t.Errorf("there is no picture %q", name)
		}
	}
	for name, text := range pictures {
		d := xml.NewDecoder(strings.NewReader(text))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, text)
				break
			}
		}
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%s holds what is no number:\n%s", name, text)
		}
	}
	if empty := (&Result{}).Pictures(); empty["rate"] == "" || strings.Contains(empty["rate"], "NaN") {
		t.Errorf("of nothing: %q", empty["rate"])
	}
	if !strings.Contains(pictures["rate"], "capped") {
		t.Error("the phase is not marked")
	}
}

// Where a shape judges swap, free memory and swap over time are kept and shown in the document; else neither is.
func TestSwapOverTime(t *testing.T) {
	r := example()
	for i := range r.Arms[:2] {
		for j := range r.Arms[i].Rounds {
			r.Arms[i].Rounds[j].Groups = map[string][]GroupSecond{"mysql": {{At: 1, Swap: 0}, {At: 2, Swap: 9 << 20}}}
			r.Arms[i].Rounds[j].Host = []HostSecond{{At: 1, Free: 2 << 30}, {At: 2, Free: 1 << 30}}
		}
	}
	for _, swaps := range []bool{false, true} {
		if swaps {
			r.Shape[0].Measure = "held.mysql.swap / 1048576"
		}
		path := filepath.Join(t.TempDir(), "proof.md")
		if err := Keep(path, Outcome{Scenario: "example", Result: r}); err != nil {
			t.Fatal(err)
		}
		kept, err := ReadFile(keptAt(path, "example"))
		if err != nil {
			t.Fatal(err)
		}
		names := strings.Join(kept.documentPictures(), " ")
		if want := map[bool]string{false: "arms rate", true: "arms rate memory-free use-swap"}[swaps]; names != want {
			t.Errorf("swap %v: the document shows %q, want %q", swaps, names, want)
		}
		rounds := kept.Arms[1].Rounds
		if got := rounds[len(rounds)-1].Host != nil; got != swaps || len(rounds) > 1 && rounds[0].Host != nil {
			t.Errorf("swap %v: of the last round seconds are kept: %v", swaps, got)
		}
	}
}

// The page needs nothing from elsewhere.
func TestPage(t *testing.T) {
	var b bytes.Buffer
	if err := example().WritePage(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{"an &lt;example&gt;", "held &lt;under&gt; the policy", "<svg",
		"left out: no such controller", "TOTAL", "hogs = 8*cpus = 16 (document: 16)"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, bad := range []string{"<example>", "<script", "src=", "href=", "@import", "url("} {
		if strings.Contains(text, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

func TestWriteText(t *testing.T) {
	var b bytes.Buffer
	if err := example().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"repeats E1: a half", "at least 95 %", "holds", "TOTAL", "The shape holds.",
		"left out: no such controller"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the text lacks %q:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "NaN") {
		t.Errorf("what was not measured shows:\n%s", b.String())
	}
}

// A document is put together from what is kept beside it, each result with its own commit, date, machine and rounds.
func TestDocument(t *testing.T) {
	path := filepath.Join(t.TempDir(), "proof.md")
	noisy, other := example(), example()
	noisy.Control.Low, noisy.Digest, noisy.Commit = 70, "0123", "c0ffee00112233"
	other.Scenario, other.Digest, other.Rounds, other.Machine = "other", "4567", 5, "64 CPUs"
	now := []Text{{"big", "E12", "12.5 % more", "nodes, the same here", ""}, {Scenario: "broken"},
		{"example", "E1", "", "", "0123"}, {Scenario: "new"}, {"other", "E2", "", "", "89ab"}}
	other.Shape = append(other.Shape, Finding{What: "calls within 10 ms", Reports: "55 %", Mechanism: "quotas",
		Measure: "alone.within_10ms", Unit: "%", Document: &Claim{Figure: 55}, Measured: Range{90, 90, 90},
		Least: Figure(nan), Most: Figure(nan), Verdict: DirectionOnly, Held: true})
	other.Document, other.Mechanism = "E2", "CPU sets; here CPU limits: few CPUs"
	for _, o := range []Outcome{{Scenario: "example", Result: noisy}, {Scenario: "other", Result: other},
		{Scenario: "big", LeftOut: "it needs 64 CPUs"}, {Scenario: "broken", Failed: "no"},
		{Scenario: "other", LeftOut: "it needs 64 CPUs"}} { // but there is a result
		if err := Keep(path, o); err != nil {
			t.Fatal(err)
		}
	}
	if err := WriteDocument(path, now); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"In 1 of 2 scenarios", "left out: it needs 64 CPUs", "Machine 2: 64 CPUs.",
		"| it is kept |  |  | 98 % | 90 % – 101 % | at least 95 % | holds |", "(proof/example-rate.svg)",
		"| E1 | [example](#example) | | same | no figure | | 1 of 1 shapes hold |\n| E2 | [other](#other) | calls " +
			"within 10 ms | quotas | 55 % | 90 % | direction only |\n" +
			"| E12 | big | | same | 12.5 % more | | left out: it needs 64 CPUs |",
		"Response times, alone:\n\n", "| 0 - 5 ms | 0.04 s | 18.4 | 90 | 0.50 ms | 0.50 ms | 0.50 ms |",
		"| [example](#example) | E1 | c0ffee00 | 2026-11-22 10:00 | 1 | 3 of 5 s | 0.1 | 70.0 % – 103.0 % | " +
			"1 of 1 shapes hold; fewer than 5 rounds |",
		"| [other](#other) | E2 | not known | 2026-11-22 10:00 | 2 | 5 of 5 s | 0.1 | 97.0 % – 103.0 % | " +
			"2 of 2 shapes hold; text changed since |",
		"Measured 2026-11-22 10:00 UTC at commit c0ffee00, 3 rounds of 5 s: 2 CPUs.",
		"**To be measured again: text changed since.**",
		"| new |  | | | | | | | no result is kept |", "| broken |  | | | | | | | no result is kept |",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the document lacks %q:\n%s", want, text)
		}
	}
	lacks, err := Wanting(path, now)
	want := []string{"broken: no result is kept", "example: fewer than 5 rounds", "new: no result is kept",
		"other: text changed since"}
	if err != nil || !slices.Equal(lacks, want) {
		t.Errorf("to be measured again are %q (%v), want %q", lacks, err, want)
	}
	if _, err := os.Stat(strings.TrimSuffix(path, ".md") + "/example-rate.svg"); err != nil {
		t.Error(err)
	}
	r, err := ReadFile(keptAt(path, "example"))
	if err != nil || r.Arms[0].Rounds[0].Groups != nil || len(r.Arms[0].Rounds[0].Seconds) != 5 {
		t.Errorf("kept is %+v (%v)", r, err)
	}
	if noisy.Arms[0].Rounds[0].Groups == nil {
		t.Error("what is not kept was taken from the result itself")
	}
}

// What says too little is not kept, nor what is too large, and a file of another scenario is no result of this one.
func TestKeepRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "proof.md")
	smoke, large := example(), example()
	smoke.Smoke = true
	for i := range 20000 {
		large.Arms[0].Rounds[0].Seconds = append(large.Arms[0].Rounds[0].Seconds, Second{At: float64(i),
			TPS: math.Sin(float64(i))})
	}
	for _, r := range []*Result{smoke, large} {
		if err := Keep(path, Outcome{Scenario: "example", Result: r}); err == nil {
			t.Errorf("smoke %v: it was kept", r.Smoke)
		}
	}
	if err := Keep(path, Outcome{Scenario: "other", Result: example()}); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(keptAt(path, "other"), keptAt(path, "example")); err != nil {
		t.Fatal(err)
	}
	if _, err := Wanting(path, []Text{{Scenario: "example"}}); err == nil {
		t.Error("the result of another scenario was read")
	}
}

// Of several loads each has a row of its own in every arm that it was in.
func TestLoadsOfAnArm(t *testing.T) {
	r := example()
	r.Loads = []string{"commits", "reads"}
	r.Arms[0].Figures["commits.tps"], r.Arms[0].Figures["reads.tps"] = Range{70, 60, 80}, Range{2100, 2000, 2200}
	r.Arms[1].Figures["commits.tps"], r.Arms[1].Figures["commits.isol01"] = Range{69, 68, 70}, Range{55, 50, 60}
	var b strings.Builder
	entry{Outcome: Outcome{Result: r}}.writeSection(&b, "proof")
	for want, times := range map[string]int{"| alone: commits | 70 |": 1, "| alone: reads | 2,100 |": 1,
		"| held <under> the policy: commits | 69 |": 1, "| 55.0 % |": 1, "policy: reads": 0} {
		if got := strings.Count(b.String(), want); got != times {
			t.Errorf("%q is there %d times, want %d:\n%s", want, got, times, b.String())
		}
	}
}

// What is written can be read again and compared.
func TestFilesAndCompare(t *testing.T) {
	dir := t.TempDir()
	a := example()
	if err := a.WriteFiles(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"example.json", "example.html", "example-rate.svg"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	read, err := ReadFile(filepath.Join(dir, "example.json"))
	if err != nil {
		t.Fatal(err)
	}
	one, _ := json.Marshal(a)
	two, _ := json.Marshal(read)
	if !bytes.Equal(one, two) {
		t.Errorf("read\n%s\nwrote\n%s", two, one)
	}
	b := example()
	b.Arms[1].Figures["tps"] = Range{50, 49, 51}
	c, err := Compare(read, b)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range c.Rows {
		slower := d.Arm == "held <under> the policy" && d.Figure == "tps"
		if d.Beyond == nil || *d.Beyond != slower || slower && math.Abs(float64(d.Change)+50) > 1e-9 {
			t.Errorf("%+v", d)
		}
	}
	var text bytes.Buffer
	if err := c.WriteText(&text); err != nil || !strings.Contains(text.String(), "-50.0 %  beyond the spread") {
		t.Errorf("%v\n%s", err, text.String())
	}
	b.Rounds = 1
	if c, err := Compare(read, b); err != nil || c.Rows[0].Beyond != nil {
		t.Errorf("of one round: %+v, %v", c, err)
	}
	b.Scenario = "other"
	if _, err := Compare(read, b); err == nil {
		t.Error("two scenarios were compared")
	}
	for name, text := range map[string]string{"no.json": "no JSON", "empty.json": "{}"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadFile(path); err == nil {
			t.Errorf("%s was read as a result", name)
		}
	}
}
