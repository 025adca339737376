package screen

import (
	"bytes"
	"regexp"
)

// The colours, as ECMA-48 numbers them: those of the terminal's own palette, whatever a person has made of it.
const (
	red, green, yellow, cyan = "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"
	plain                    = "\x1b[m"
)

// whole are lines that have one colour, by how they begin; the first that fits counts.
var whole = []struct{ head, colour string }{
	{"bulkhead: ", red}, {"warning: ", yellow}, {"hint: ", cyan},
	{"--- ", ""}, {"+++ ", ""}, {"@@ ", cyan}, {"-", red}, {"+", green},
}

// alarms are the words in capitals that say that something is not as it should be.
var alarms = regexp.MustCompile(
	`\b(?:NOT (?:RUNNING|ENFORCED|PLACED|IN FORCE)|[1-9]\d* DIFFERS|DIFFERS|RELEASED|INTERRUPTED|CHANGED BY SOMEBODY ` +
		`ELSE|ON TRIAL|CANARY|FROZEN|OVERDUE|BITING|PROBLEM)\b`)

// coloured gives each whole line of a text the colour of what it says. begun: the text begins a line.
func coloured(text []byte, begun bool) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(text) {
		body, ended := bytes.CutSuffix(line, []byte("\n"))
		switch colour, is := colourOf(body); {
		case !begun || !ended:
			b.Write(line)
			continue
		case is && colour != "":
			b.WriteString(colour)
			b.Write(body)
			b.WriteString(plain)
		case is:
			b.Write(body)
		default:
			b.Write(alarms.ReplaceAll(body, []byte(red+"$0"+plain)))
		}
		b.WriteByte('\n')
		begun = true
	}
	return b.Bytes()
}

func colourOf(line []byte) (colour string, is bool) {
	for _, w := range whole {
		if bytes.HasPrefix(line, []byte(w.head)) {
			return w.colour, true
		}
	}
	return "", false
}
