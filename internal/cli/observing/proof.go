package observing

import (
	"fmt"
	"strings"
	"time"

	"bulkhead/internal/attribution"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/experiment"
)

// part is the part of its time that a group waits for a resource; nil where that is not counted: what is estimated is
// another as soon as others do less.
func part(r *attribution.Report, resource string) *float64 {
	for _, one := range r.Resources {
		if one.Name == resource && one.Known && one.Grade == attribution.Counted {
			return &one.Part
		}
	}
	return nil
}

func title(resource string) string { return (&attribution.Resource{Name: resource}).Title() }

// words are the verdict.
func (p *Proof) words() string {
	if !p.Shown {
		return fmt.Sprintf("not shown that %s slows %s: %s", p.Group, p.Victim, p.Why)
	}
	var gains []string
	if w := p.Waits; w != nil && w.Shows {
		gains = append(gains, fmt.Sprintf("%s waits for %s for %s of its time, else for %s", p.Victim,
			title(p.Hold.Resource), attribution.Percent(w.Held), attribution.Percent(w.Free)))
	}
	for _, one := range []struct {
		figure *experiment.Figure
		what   string
	}{{p.Work, "its work"}, {p.IO, "what it reads and writes"}} {
		if f := one.figure; f != nil && f.Free > 0 && (f.Shows || f == p.Work) {
			gains = append(gains, fmt.Sprintf("%s is %+.0f %% (%+.0f to %+.0f)", one.what, 100*f.Difference/f.Free,
				100*f.Low/f.Free, 100*f.High/f.Free))
		}
	}
	return fmt.Sprintf("shown: %s slows %s. While it is held, %s", p.Group, p.Victim, strings.Join(gains, "; "))
}

func (s Session) printProof(p *Proof) {
	render.Println(s.Out, p.Verdict)
	if p.Pairs > 0 {
		s.printFigures(p)
	}
	for _, n := range p.Notes {
		render.Printf(s.Out, "note: %s\n", n)
	}
}

func (s Session) printFigures(p *Proof) {
	render.Printf(s.Out, "\n%d pairs of blocks of %s, in %s\n", p.Pairs, blockFor,
		p.To.Sub(p.From).Round(time.Second))
	rows := [][]string{{"FIGURE", "FREE", "HELD", "DIFFERENCE", fmt.Sprintf("%.0f %% INTERVAL", 100*p.Confidence),
		"CHANCE"}}
	if w := p.Waits; w != nil {
		rows = append(rows, []string{p.Victim + " waits for " + title(p.Hold.Resource), attribution.Percent(w.Free),
			attribution.Percent(w.Held), points(-w.Difference), points(-w.High) + " to " + points(-w.Low),
			attribution.Percent(w.Chance)})
	}
	did := func(what string, f *experiment.Figure) {
		if f != nil {
			rows = append(rows, []string{p.Victim + what, perSecond(f.Free), perSecond(f.Held), signed(f.Difference),
				signed(f.Low) + " to " + signed(f.High), attribution.Percent(f.Chance)})
		}
	}
	did(" does", p.Work)
	did(" costs the disk (requests)", p.IO)
	used := p.Group + " uses CPUs"
	if p.Hold.Resource == "disk" {
		used = p.Group + " costs the disk (requests)"
	}
	rows = append(rows, []string{used, fmt.Sprintf("%.2f", p.UsedFree), fmt.Sprintf("%.2f", p.UsedHeld), "", "", ""})
	render.Table(s.Out, rows)
	render.Println(s.Out, "CHANCE is how often chance alone gives as large a difference, here or in another figure.")
}

func points(part float64) string { return fmt.Sprintf("%+.1f points", 100*part+0) }

func perSecond(n float64) string { return fmt.Sprintf("%.0f/s", n) }

func signed(n float64) string { return fmt.Sprintf("%+.0f/s", n) }
