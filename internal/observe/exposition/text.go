package exposition

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"hash/crc32"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/figures"
)

// mostTexts bounds how many answers to different questions are kept of a sample: a scraper asks for the same one again
// and again.
const mostTexts = 16

// texts are the answers that were made of the last sample, each for all who ask for it.
type texts struct {
	mu     sync.Mutex // held while one is made: whoever asks for it meanwhile would make it, too
	of     *figures.Set
	all    map[question]*text
	frames map[question]*frame // of its layout, which following samples have, too
}

// question is what an answer depends on beside the sample.
type question struct {
	open  bool // as OpenMetrics
	parts string
}

// text is an answer without the server's own figures, which differ each time.
type text struct {
	*frame

	// sections are what stands before, between and behind the families of observe.Own, by their names.
	sections [][]byte
	zipped   [][]byte // the same as blocks of DEFLATE (RFC 1951), each by itself; nil before somebody has asked
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

// told takes a figure, by the index of its family and its place among the values of the sample.
type told func(i, at int, labels []string)

// get gives the answer to a question about a sample: the one that is there, else it is made. figures tells those that
// are to be in it.
func (t *texts) get(of *figures.Set, q question, zip bool, figures func(told) (dropped int64)) *text {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.frames == nil || of == nil || t.of == nil || of.Layout != t.of.Layout {
		t.frames = map[question]*frame{}
	}
	if t.of != of || t.all == nil {
		t.of, t.all = of, map[question]*text{}
	}
	one := t.all[q]
	if one == nil {
		one = &text{frame: t.frames[q]}
		if one.frame == nil {
			one.frame = newFrame(q.open, figures)
		}
		one.fill(q.open, of)
		if len(t.frames) < mostTexts {
			t.all[q], t.frames[q] = one, one.frame
		}
	}
	if zip && one.zipped == nil {
		one.zipped = deflated(one.sections)
	}
	return one
}

// fill writes the figures of a sample, which may be nil.
func (t *text) fill(open bool, of *figures.Set) {
	size := 0
	for i := range t.parts {
		size += len(t.parts[i].fixed) + 16*len(t.parts[i].values)
	}
	buf := make([]byte, 0, size)
	for i := range t.parts {
		begin, from, p := len(buf), 0, &t.parts[i]
		for _, v := range p.values {
			buf = number(append(buf, p.fixed[from:v.behind]...), open, of.Values[v.at])
			from = v.behind
		}
		buf = append(buf, p.fixed[from:]...)
		t.sections = append(t.sections, buf[begin:len(buf):len(buf)])
	}
}

// ownText writes the families of observe.Own, by their names; one without a figure is empty.
func ownText(own []func(observe.Tell), open bool) (all [][]byte) {
	for _, i := range byName {
		if i >= len(own) {
			continue
		}
		var buf []byte
		own[i](func(value float64, labels ...string) {
			buf = families[i].line(families[i].head(buf, open), labels)
			buf = append(number(buf, open, value), '\n')
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
