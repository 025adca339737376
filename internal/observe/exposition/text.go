package exposition

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	dto "github.com/prometheus/client_model/go"

	"bulkhead/internal/observe"
)

// mostTexts bounds how many answers to different questions are kept of a sample: a scraper asks for the same one again
// and again.
const mostTexts = 16

// texts are the answers that were made of the last sample, each for all who ask for it.
type texts struct {
	mu  sync.Mutex // held while one is made: whoever asks for it meanwhile would make it, too
	of  *observe.Sample
	all map[question]*text
	// size is how much room the next one takes, by the last one.
	size int
}

// question is what an answer depends on beside the sample.
type question struct {
	open  bool // as OpenMetrics
	parts string
}

// text is an answer without the server's own figures, which differ each time.
type text struct {
	// sections are what stands before, between and behind the families of observe.Own, by their names.
	sections [][]byte
	zipped   [][]byte // the same as blocks of DEFLATE (RFC 1951), each by itself; nil before somebody has asked
	dropped  int64
}

func names(parts []observe.Part) string {
	var all []string
	for _, p := range parts {
		all = append(all, string(p))
	}
	return strings.Join(all, ",")
}

// takesGzip says whether a scraper takes gzip (RFC 9110, section 12.5.3).
func takesGzip(h http.Header) bool {
	for _, list := range h.Values("Accept-Encoding") {
		for one := range strings.SplitSeq(list, ",") {
			coding, weight, _ := strings.Cut(strings.ReplaceAll(one, " ", ""), ";")
			if coding == "gzip" {
				q, err := strconv.ParseFloat(strings.TrimPrefix(weight, "q="), 64)
				return err != nil || q > 0
			}
		}
	}
	return false
}

// told takes a figure, by the index of its family.
type told func(i int, value float64, labels []string)

// get gives the answer to a question about a sample: the one that is there, else it is made of figures.
func (t *texts) get(of *observe.Sample, q question, zip bool, figures func(told) (dropped int64)) *text {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of != of || t.all == nil {
		t.of, t.all = of, map[question]*text{}
	}
	one := t.all[q]
	if one == nil {
		one = t.make(q.open, figures)
		if len(t.all) < mostTexts {
			t.all[q] = one
		}
	}
	if zip && one.zipped == nil {
		one.zipped = deflated(one.sections)
	}
	return one
}

// make writes the figures of a sample. The caller holds the lock.
func (t *texts) make(open bool, figures func(told) int64) *text {
	buf := make([]byte, 0, t.size)
	spans := make([][2]int, len(families)) // of each family in buf
	one := &text{}
	one.dropped = figures(func(i int, value float64, labels []string) {
		if spans[i][1] == 0 {
			spans[i][0] = len(buf)
			buf = families[i].head(buf, open)
		}
		buf = families[i].line(buf, open, value, labels)
		spans[i][1] = len(buf)
	})
	t.size = len(buf) + len(buf)/8
	sorted, from := make([]byte, 0, len(buf)+8), 0
	for _, i := range byName {
		if i < len(observe.Own) {
			one.sections, from = append(one.sections, sorted[from:len(sorted):len(sorted)]), len(sorted)
			continue
		}
		sorted = append(sorted, buf[spans[i][0]:spans[i][1]]...)
	}
	if open {
		sorted = append(sorted, "# EOF\n"...)
	}
	one.sections = append(one.sections, sorted[from:])
	return one
}

// ownText writes the families of observe.Own, by their names; one without a figure is empty.
func ownText(own []func(observe.Tell), open bool) (all [][]byte) {
	for _, i := range byName {
		if i >= len(own) {
			continue
		}
		var buf []byte
		own[i](func(value float64, labels ...string) {
			buf = families[i].line(families[i].head(buf, open), open, value, labels)
		})
		all = append(all, buf)
	}
	return all
}

// interleave gives a[0], b[0], a[1], … ; a has one more.
func interleave(a, b [][]byte) (all [][]byte) {
	for i := range a {
		if all = append(all, a[i]); i < len(b) {
			all = append(all, b[i])
		}
	}
	return all
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

// line writes one figure.
func (f *family) line(buf []byte, open bool, value float64, labels []string) []byte {
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
	return append(number(append(buf, ' '), open, value), '\n')
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

// compressors are kept: a new one takes a megabyte.
var compressors = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // the level is one
	return w
}}

// deflated compresses sections, each so that it ends with a byte and looks back at none of the others.
func deflated(sections [][]byte) (all [][]byte) {
	w := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	for _, section := range sections {
		var buf bytes.Buffer
		w.Reset(&buf)
		_, _ = w.Write(section) // into memory
		_ = w.Flush()
		all = append(all, buf.Bytes())
	}
	return all
}

// gzipped puts a gzip file (RFC 1952) together of a text, every second piece of which is there compressed. The others
// are little, and stay as they are.
func gzipped(whole, zipped [][]byte) []byte {
	size := 64
	for _, one := range zipped {
		size += len(one) + 512
	}
	out := append(make([]byte, 0, size), 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255) // the fastest way; no time, no name
	length, sum := 0, uint32(0)
	for i, one := range whole {
		if length, sum = length+len(one), crc32.Update(sum, crc32.IEEETable, one); i%2 == 0 {
			out = append(out, zipped[i/2]...)
		} else {
			out = stored(out, false, one)
		}
	}
	out = stored(out, true, nil)
	out = binary.LittleEndian.AppendUint32(out, sum)
	return binary.LittleEndian.AppendUint32(out, uint32(length)) //nolint:gosec // modulo 2^32, as the format says
}

// stored writes a block of DEFLATE that is not compressed, of less than 64 KiB.
func stored(out []byte, final bool, data []byte) []byte {
	head, size := byte(0), uint16(len(data)) //nolint:gosec // a few lines
	if final {
		head = 1
	}
	out = binary.LittleEndian.AppendUint16(append(out, head), size)
	return append(binary.LittleEndian.AppendUint16(out, ^size), data...)
}
