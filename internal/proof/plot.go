package proof

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// line is one curve of a plot.
type line struct {
	name   string
	x, y   []float64
	low    []float64 // with high: a band around the curve; nil is none
	high   []float64
	colour int
}

// plot is a picture with two axes.
type plot struct {
	title, xTitle, yTitle string
	lines                 []line
	marks                 []Mark // where phases begin, on the x axis
	logX                  bool
	xTick                 func(float64) string
}

// The palette keeps its distances for most kinds of colour blindness (Okabe and Ito).
var palette = []string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"}

func colour(i int) string { return palette[i%len(palette)] }

// The picture's size, and what its margins leave for the plot.
const (
	width, height            = 860.0, 340.0
	left, right, top, bottom = 72.0, 16.0, 34.0, 46.0
)

// span is the values that an axis covers.
type span struct{ low, high float64 }

func (s *span) take(x float64) {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return
	}
	s.low, s.high = math.Min(s.low, x), math.Max(s.high, x)
}

// step is a round distance of ticks: 1, 2 or 5 times a power of ten.
func step(length float64, ticks int) float64 {
	raw := length / float64(ticks)
	if raw <= 0 || math.IsInf(raw, 0) || math.IsNaN(raw) {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(raw)))
	for _, m := range []float64{1, 2, 5} {
		if m*power >= raw {
			return m * power
		}
	}
	return 10 * power
}

// svg draws the plot.
func (p plot) svg() string {
	x, y := span{math.Inf(1), math.Inf(-1)}, span{0, math.Inf(-1)}
	for _, l := range p.lines {
		for i := range l.x {
			if p.logX && l.x[i] <= 0 {
				continue
			}
			x.take(p.place(l.x[i]))
			y.take(l.y[i])
			if l.high != nil {
				y.take(l.high[i])
			}
		}
	}
	if x.high <= x.low {
		x.low, x.high = x.low-1, x.low+1
	}
	if math.IsInf(x.low, 0) {
		x = span{0, 1}
	}
	if !(y.high > 0) {
		y.high = 1
	}
	y.high *= 1.05
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="12" `+
			`role="img"><title>%s</title>`, width, height+22*float64((len(p.lines)+2)/3), html.EscapeString(p.title))
	fmt.Fprintf(&b,
		`<rect width="100%%" height="100%%" fill="#ffffff"/>`+
			`<text x="%.0f" y="18" font-size="14" font-weight="bold">%s</text>`, left, html.EscapeString(p.title))
	atX := func(v float64) float64 { return left + (p.place(v)-x.low)/(x.high-x.low)*(width-left-right) }
	atY := func(v float64) float64 { return height - bottom - v/y.high*(height-top-bottom) }
	p.axes(&b, x, y, atX, atY)
	for _, m := range p.marks {
		fmt.Fprintf(&b,
			`<line x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f" stroke="#444" stroke-dasharray="5 4"/>`+
				`<text x="%.1f" y="%.0f" fill="#444">%s</text>`,
			atX(m.At), atX(m.At), top, height-bottom, atX(m.At)+4, top+12, html.EscapeString(m.Name))
	}
	for i, l := range p.lines {
		l.draw(&b, atX, atY)
		column, row := float64(i%3), float64(i/3)
		fmt.Fprintf(&b, `<rect x="%.0f" y="%.0f" width="14" height="4" fill="%s"/><text x="%.0f" y="%.0f">%s</text>`,
			left+column*260, height+8+row*20, colour(l.colour),
			left+column*260+20, height+14+row*20, html.EscapeString(shorten(l.name, 38)))
	}
	b.WriteString("</svg>")
	return b.String()
}

// shorten cuts a name that would run into the next one.
func shorten(name string, most int) string {
	if runes := []rune(name); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return name
}

// place is where a value lies on the x axis before it is scaled.
func (p plot) place(v float64) float64 {
	if p.logX {
		return math.Log10(v)
	}
	return v
}

func (p plot) axes(b *strings.Builder, x, y span, atX, atY func(float64) float64) {
	for v, d := 0.0, step(y.high, 5); v <= y.high; v += d {
		fmt.Fprintf(b,
			`<line x1="%.0f" x2="%.0f" y1="%.1f" y2="%.1f" stroke="#ddd"/>`+
				`<text x="%.0f" y="%.1f" text-anchor="end">%s</text>`,
			left, width-right, atY(v), atY(v), left-6, atY(v)+4, plain(v))
	}
	tick := p.xTick
	if tick == nil {
		tick = plain
	}
	put := func(v float64) {
		fmt.Fprintf(b,
			`<line x1="%.1f" x2="%.1f" y1="%.0f" y2="%.0f" stroke="#bbb"/>`+
				`<text x="%.1f" y="%.0f" text-anchor="middle">%s</text>`,
			atX(v), atX(v), height-bottom, height-bottom+4, atX(v), height-bottom+18, html.EscapeString(tick(v)))
	}
	if p.logX {
		for e := math.Ceil(x.low - 1e-9); e <= x.high+1e-9; e++ {
			put(math.Pow(10, e))
		}
	} else {
		for v, d := math.Ceil(x.low/step(x.high-x.low, 8))*step(x.high-x.low, 8), step(x.high-x.low,
			8); v <= x.high+1e-9; v += d {
			put(v)
		}
	}
	fmt.Fprintf(b, `<path d="M%.0f %.0fV%.0fH%.0f" fill="none" stroke="#000"/>`, left, top, height-bottom, width-right)
	fmt.Fprintf(b, `<text x="%.0f" y="%.0f" text-anchor="middle">%s</text>`, (left+width-right)/2, height-bottom+34,
		html.EscapeString(p.xTitle))
	fmt.Fprintf(b, `<text transform="translate(14 %.0f) rotate(-90)" text-anchor="middle">%s</text>`,
		(top+height-bottom)/2, html.EscapeString(p.yTitle))
}

// draw draws the curve, and the band around it.
func (l line) draw(b *strings.Builder, atX, atY func(float64) float64) {
	if l.high != nil && len(l.x) > 1 {
		var points strings.Builder
		for i := range l.x {
			fmt.Fprintf(&points, "%.1f,%.1f ", atX(l.x[i]), atY(l.high[i]))
		}
		for i := len(l.x) - 1; i >= 0; i-- {
			fmt.Fprintf(&points, "%.1f,%.1f ", atX(l.x[i]), atY(l.low[i]))
		}
		fmt.Fprintf(b, `<polygon points="%s" fill="%s" fill-opacity="0.15"/>`, strings.TrimSpace(points.String()),
			colour(l.colour))
	}
	var path strings.Builder
	verb := "M"
	for i := range l.x {
		if math.IsNaN(l.y[i]) || math.IsInf(l.y[i], 0) {
			verb = "M" // a gap
			continue
		}
		fmt.Fprintf(&path, "%s%.1f %.1f", verb, atX(l.x[i]), atY(l.y[i]))
		verb = "L"
	}
	fmt.Fprintf(b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`, path.String(), colour(l.colour))
}

// bar is one bar of a chart, with the spread of its rounds.
type bar struct {
	name  string
	value Range
}

// bars draws horizontal bars, so that their names have room.
func bars(title, unit string, all []bar) string {
	const row, names = 30.0, 300.0
	whole := 0.0
	for _, x := range all {
		for _, v := range []Figure{x.value.High, x.value.Median} {
			if v := float64(v); !math.IsNaN(v) {
				whole = math.Max(whole, v)
			}
		}
	}
	if whole <= 0 {
		whole = 1
	}
	at := func(v float64) float64 { return names + v/whole*(width-names-110) }
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="12" `+
			`role="img"><title>%s</title><rect width="100%%" height="100%%" fill="#ffffff"/>`+
			`<text x="8" y="18" font-size="14" font-weight="bold">%s</text>`,
		width, 34+row*float64(len(all)), html.EscapeString(title), html.EscapeString(title))
	for i, x := range all {
		y := 30 + row*float64(i)
		fmt.Fprintf(&b, `<text x="%.0f" y="%.1f" text-anchor="end">%s</text>`, names-8, y+15, html.EscapeString(x.name))
		median, low, high := float64(x.value.Median), float64(x.value.Low), float64(x.value.High)
		if math.IsNaN(median) {
			fmt.Fprintf(&b, `<text x="%.0f" y="%.1f" fill="#777">not measured</text>`, names+4, y+15)
			continue
		}
		fmt.Fprintf(&b, `<rect x="%.0f" y="%.1f" width="%.1f" height="20" fill="%s"/>`, names, y,
			math.Max(at(median)-names, 1), colour(i))
		fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1fM%.1f %.1fv8M%.1f %.1fv8" stroke="#000" fill="none"/>`, at(low), y+10,
			at(high), at(low), y+6, at(high), y+6)
		fmt.Fprintf(&b, `<text x="%.1f" y="%.1f">%s %s</text>`, at(high)+6, y+15, plain(median),
			html.EscapeString(unit))
	}
	b.WriteString("</svg>")
	return b.String()
}
