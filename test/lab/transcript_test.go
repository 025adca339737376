package lab

import (
	"strings"
	"testing"
	"time"
)

const console = "Booting\r\n[    0.1] x\r\n[    1.0] y<<<lab begin a>>>\r\n=== RUN   TestX\r\n--- PASS: TestX " +
	"(0.01s)\r\n    --- PASS: TestY (0.00s)\r\nno break\r\n" +
	"\r\n<<<lab end a 0 7.50>>>\r\nbetween\r\n<<<lab begin b>>>\r\n\r\n<<<lab end b 2 8.00>>>\r\n"

func TestTranscript(t *testing.T) {
	all, err := Transcript(strings.NewReader(console + doneMarker + "\r\n[   9.0] reboot: Power down\r\n"))
	if err != nil || len(all) != 2 {
		t.Fatalf("%d sections, %v", len(all), err)
	}
	a, b := all[0], all[1]
	if a.Name != "a" || a.Status != 0 || a.Ended != 7500*time.Millisecond || len(a.Lines) != 4 ||
		a.Lines[3] != "no break" {
		t.Errorf("%+v", a)
	}
	if b.Name != "b" || b.Status != 2 || len(b.Lines) != 0 {
		t.Errorf("%+v", b)
	}
	if !a.Passed("TestX") || a.Passed("Test") || a.Passed("TestY") {
		t.Error("TestX alone passed")
	}
}

func TestTranscriptOfABrokenRun(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":          "",
		"no end":           console,
		"panic in a test":  console + "<<<lab begin c>>>\r\nKernel panic - not syncing\r\n",
		"done in a test":   console + "<<<lab begin c>>>\r\n" + doneMarker + "\r\n",
		"nested":           "<<<lab begin a>>>\n<<<lab begin b>>>\n",
		"crossed":          "<<<lab begin a>>>\n<<<lab end b 0 1.0>>>\n",
		"too late":         "<<<lab begin a>>>\n<<<lab end a 0 99999999999999999999.0>>>\n",
		"too large status": "<<<lab begin a>>>\n<<<lab end a 99999999999999999999 1.0>>>\n",
	} {
		if all, err := Transcript(strings.NewReader(text)); err == nil {
			t.Errorf("%s: %d sections and no error", name, len(all))
		}
	}
}
