package rlimit

import (
	"maps"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	const text = "Limit                     Soft Limit           Hard Limit           Units     \n" +
		"Max cpu time              unlimited            unlimited            seconds   \n" +
		"Max open files            1024                 524288               files     \n" +
		"Max nice priority         0                    0                    \n" +
		"Max locked memory         oops                 8388608              bytes     \n" +
		"Max processes             12\n"
	want := map[string]Limit{"Max cpu time": {Unlimited, Unlimited}, "Max open files": {1024, 524288},
		"Max nice priority": {}}
	if got := Parse(text); !maps.Equal(got, want) {
		t.Errorf("it read %v, and not %v", got, want)
	}
}

// What this kernel lists is what getrlimit(2) says.
func TestLiveLimits(t *testing.T) {
	text, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	for name, resource := range map[string]int{"Max open files": unix.RLIMIT_NOFILE, "Max processes": unix.RLIMIT_NPROC,
		"Max locked memory": unix.RLIMIT_MEMLOCK, "Max core file size": unix.RLIMIT_CORE} {
		var is unix.Rlimit
		if err := unix.Prlimit(0, resource, nil, &is); err != nil {
			t.Fatal(err)
		}
		if got, ok := Parse(string(text))[name]; !ok || got != (Limit{is.Cur, is.Max}) {
			t.Errorf("%s: /proc has %v (%v), and prlimit %v", name, got, ok, is)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("Max open files 1 unlimited files\n")
	f.Fuzz(func(t *testing.T, text string) {
		for name := range Parse(text) {
			if name == "" {
				t.Error("a row without a name")
			}
		}
	})
}
