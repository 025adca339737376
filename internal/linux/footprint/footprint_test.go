package footprint

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// Code that is not used again is mapped no more, and the program goes on. The kernel maps 64 KiB around what is used.
func TestShrink(t *testing.T) {
	mapped := func() (sum int) { // in KiB, of the program's code
		text, err := os.ReadFile("/proc/self/smaps")
		if err != nil {
			t.Fatal(err)
		}
		code := false
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			switch {
			case strings.HasSuffix(f[0], ":"):
				if kib, err := strconv.Atoi(f[1]); code && f[0] == "Rss:" && err == nil {
					sum += kib
				}
			default:
				code = f[1] == "r-xp" && strings.Contains(line, os.Args[0])
			}
		}
		return sum
	}
	before := mapped()
	if err := Shrink(); err != nil {
		t.Fatal(err)
	}
	if after := mapped(); after >= before {
		t.Errorf("%d KiB of the program are mapped, before %d", after, before)
	}
}
