package exposition

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"

	"bulkhead/internal/observe"
)

// frame is the text of an answer without values. Those of a sample are put into it: what figures there are, and so all
// the rest, changes seldom.
type frame struct {
	// parts are what stands before, between and behind the families of observe.Own, by their names.
	parts   []part
	dropped int64
}

// part is a piece of a frame.
type part struct {
	fixed  []byte
	values []value
}

// value is one that stands behind so much of the fixed text.
type value struct{ behind, at int }

// newFrame makes a frame of the figures that are told.
func newFrame(open bool, figures func(told) (dropped int64)) *frame {
	all := make([]part, len(families))
	f := &frame{dropped: figures(func(i, at int, labels []string) {
		p := &all[i]
		if p.fixed == nil {
			p.fixed = families[i].head(nil, open)
		}
		p.fixed = families[i].line(p.fixed, labels)
		p.values = append(p.values, value{len(p.fixed), at})
		p.fixed = append(p.fixed, '\n')
	}), parts: make([]part, 1)}
	for _, i := range byName {
		last := &f.parts[len(f.parts)-1]
		if i < len(observe.Own) {
			f.parts = append(f.parts, part{})
			continue
		}
		for _, v := range all[i].values {
			last.values = append(last.values, value{len(last.fixed) + v.behind, v.at})
		}
		last.fixed = append(last.fixed, all[i].fixed...)
	}
	if last := &f.parts[len(f.parts)-1]; open {
		last.fixed = append(last.fixed, "# EOF\n"...)
	}
	return f
}

// Escapes of the text format, and of OpenMetrics, whose help is as its labels.
var (
	inHelp  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	inLabel = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

// head writes what stands above the figures of a family.
func (f *family) head(buf []byte, open bool) []byte {
	name, help, kind := f.row.Name, inHelp.Replace(f.row.Help), "gauge"
	if open {
		help = inLabel.Replace(f.row.Help)
	}
	if f.kind == dto.MetricType_COUNTER {
		if kind = "counter"; open {
			name = strings.TrimSuffix(name, "_total")
		}
	}
	for _, word := range []string{"# HELP ", name, " ", help, "\n# TYPE ", name, " ", kind, "\n"} {
		buf = append(buf, word...)
	}
	return buf
}

// line writes one figure up to its value.
func (f *family) line(buf []byte, labels []string) []byte {
	buf = append(buf, f.row.Name...)
	for i, at := range f.at {
		separator := byte(',')
		if i == 0 {
			separator = '{'
		}
		buf = append(append(append(buf, separator), *f.names[i]...), `="`...)
		buf = append(appendLabel(buf, labels[at]), '"')
	}
	if len(f.at) > 0 {
		buf = append(buf, '}')
	}
	return append(buf, ' ')
}

// appendLabel writes the value of a label.
func appendLabel(buf []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c == '\\' || c == '\n' || c == '"' || c >= utf8.RuneSelf {
			return append(buf, inLabel.Replace(strings.ToValidUTF8(text, "\uFFFD"))...)
		}
	}
	return append(buf, text...)
}

// number writes a value as Prometheus does; OpenMetrics has a point in each.
func number(buf []byte, open bool, value float64) []byte {
	switch {
	case math.IsNaN(value):
		return append(buf, "NaN"...)
	case math.IsInf(value, 1):
		return append(buf, "+Inf"...)
	case math.IsInf(value, -1):
		return append(buf, "-Inf"...)
	}
	from := len(buf)
	buf = strconv.AppendFloat(buf, value, 'g', -1, 64)
	if open && !bytes.ContainsAny(buf[from:], "e.") {
		buf = append(buf, ".0"...)
	}
	return buf
}
