package meminfo

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
)

// The file of the host and that of a node are read alike; a line that is none is an error with its place.
func TestRead(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]map[string]int64{
		"MemTotal:  24684092 kB\nHugePages_Total:   7\n": {"MemTotal": 24684092 << 10, "HugePages_Total": 7},
		"Node 1 Active(file): 2 kB\n\n":                  {"Active(file)": 2048},
		"MemTotal: 1 kB\nMemFree: much kB\n":             nil,
	} {
		if err := os.WriteFile(filepath.Join(dir, "meminfo"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Read(sysroot.New(dir), "/meminfo")
		if want == nil && (err == nil || !strings.Contains(err.Error(), "line 2")) ||
			want != nil && (err != nil || !maps.Equal(got, want)) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range linuxtest.Entries(f, "meminfo") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		info, err := parse("meminfo", text)
		for name, n := range info {
			if err == nil && n < 0 {
				t.Fatalf("%q gives %s of %d", text, name, n)
			}
		}
	})
}
