package systemd

import (
	"strings"
	"testing"
)

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]int{
		"252.39-1~deb12u1": 252, "247": 247, "219": 219, "257~rc1-2": 257, "v256.4": 256,
		"systemd 239 (239-58.el8)": 239, "249.11-0ubuntu3.17\n": 249,
	} {
		v, err := ParseVersion(text)
		if err != nil || v.Number != want || v.String() != strings.TrimSpace(text) {
			t.Errorf("ParseVersion(%q) = %+v, %v, want %d", text, v, err, want)
		}
	}
	for _, text := range []string{"", "deb12", "-5", "0", "99999999999999999999", "v"} {
		if v, err := ParseVersion(text); err == nil {
			t.Errorf("ParseVersion(%q) = %+v, want an error", text, v)
		}
	}
	if !(Version{}).AtLeast(999) || (Version{Number: 252}).AtLeast(253) || !(Version{Number: 253}).AtLeast(253) {
		t.Error("AtLeast")
	}
}

func FuzzParseVersion(f *testing.F) {
	for _, text := range []string{"252.39-1~deb12u1", "v", "", "-1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if v, err := ParseVersion(text); err == nil && (v.Number < 1 || !v.AtLeast(v.Number) || v.AtLeast(v.Number+1)) {
			t.Errorf("%q gives %+v", text, v)
		}
	})
}
