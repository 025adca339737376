package sysroot

import (
	"bytes"
	"io"
	"testing"
)

// BenchmarkReadProc reads a small file of /proc by os.File, and as ReadFile does.
func BenchmarkReadProc(b *testing.B) {
	const name = "/proc/self/schedstat"
	root := New("/")
	b.Run("os.File", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			f, err := root.Open(name)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := new(bytes.Buffer).ReadFrom(io.LimitReader(f, MaxPseudoFile)); err != nil {
				b.Fatal(err)
			}
			f.Close()
		}
	})
	b.Run("ReadFile", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := root.ReadFile(name); err != nil {
				b.Fatal(err)
			}
		}
	})
}
