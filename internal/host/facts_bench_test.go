package host

import (
	"testing"
)

func BenchmarkFacts(b *testing.B) {
	h := New("/")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := h.Facts(); err != nil {
			b.Fatal(err)
		}
	}
}
