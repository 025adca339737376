package proof

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Number prints a count with thousands separated, without decimals.
func Number(x float64) string {
	if math.IsNaN(x) {
		return "-"
	}
	digits := strconv.FormatInt(int64(math.Round(math.Abs(x))), 10)
	var b strings.Builder
	if x < 0 && digits != "0" {
		b.WriteByte('-')
	}
	for i, c := range digits {
		if i > 0 && (len(digits)-i)%3 == 0 {
			b.WriteByte(',')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// milliseconds prints a latency with two significant decimals below 10 ms and one above.
func milliseconds(ms float64) string {
	switch {
	case math.IsNaN(ms):
		return "-"
	case ms < 10:
		return fmt.Sprintf("%.2f ms", ms)
	default:
		return fmt.Sprintf("%.1f ms", ms)
	}
}

func percent(x float64) string {
	if math.IsNaN(x) {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", x)
}

// BytesText prints an amount in the largest binary unit that keeps it at least 1.
func BytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	x, i := float64(n), 0
	for math.Abs(x) >= 1024 && i < len(units)-1 {
		x, i = x/1024, i+1
	}
	return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0") + " " + units[i]
}

// Clock prints a duration as minutes and seconds, "4:05".
func Clock(d time.Duration) string {
	s := int(d.Round(time.Second) / time.Second)
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}

// table lays rows out in columns two blanks apart. The columns in right are aligned to the right.
func table(rows [][]string, right ...int) string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	toRight := make([]bool, len(widths))
	for _, i := range right {
		if i < len(toRight) {
			toRight[i] = true
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i > 0 {
				line.WriteString("  ")
			}
			if toRight[i] {
				line.WriteString(pad + cell)
			} else {
				line.WriteString(cell + pad)
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// Plural counts things: "1 round", "3 rounds".
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return Number(float64(n)) + " " + what + "s"
}

// wrap breaks a text into lines of at most width columns. Each begins with the margin, and every one
// but the first with two blanks more.
func wrap(text string, width int, margin string) string {
	var b strings.Builder
	line := margin
	empty := true
	for _, word := range strings.Fields(text) {
		if !empty && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			b.WriteString(line + "\n")
			line, empty = margin+"  ", true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	b.WriteString(line + "\n")
	return b.String()
}
