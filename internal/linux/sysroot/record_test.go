package sysroot_test

import (
	"bytes"
	"testing"

	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
)

func FuzzMaskSecrets(f *testing.F) {
	for _, text := range linuxtest.Entries(f, "/cmdline") {
		f.Add(bytes.ReplaceAll(bytes.TrimPrefix(text, []byte(sysroot.CapturedBytes)), []byte(`\0`), []byte{0}))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if masked := sysroot.MaskSecrets(text); bytes.Count(masked, []byte{0}) != bytes.Count(text, []byte{0}) {
			t.Fatalf("%q masked is %q: arguments are lost", text, masked)
		}
	})
}
