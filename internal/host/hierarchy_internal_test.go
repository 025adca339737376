package host

import (
	"slices"
	"testing"

	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/mountinfo"
)

func TestParseControllers(t *testing.T) {
	got, err := parseControllers([]byte("#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t1\t1\n" +
		"memory\t0\t1\t0\n"))
	want := []kernelController{{"cpu", 3, true}, {"memory", 0, false}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func FuzzHierarchies(f *testing.F) {
	for _, text := range linuxtest.Entries(f, "mountinfo") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		mounts, err := mountinfo.Parse(text)
		if err != nil || len(mounts) > 100 {
			return
		}
		seen := map[string]bool{}
		for _, h := range hierarchies(mounts, nil) {
			if h.ID == "" || seen[h.ID] {
				t.Fatalf("hierarchy %q is there twice or has no ID", h.ID)
			}
			seen[h.ID] = true
		}
	})
}

func FuzzParseControllers(f *testing.F) {
	for _, text := range linuxtest.Entries(f, "proc/cgroups") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := parseControllers(text)
		for _, c := range list {
			if err == nil && c.name == "" {
				t.Fatalf("%q gives a controller without a name", text)
			}
		}
	})
}

func FuzzParseVersion(f *testing.F) {
	for _, text := range linuxtest.Entries(f, "osrelease") {
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if v, err := ParseVersion(text); err == nil && (v.Major < 0 || v.Minor < 0 || v.Patch < 0) {
			t.Fatalf("%q gives %+v", text, v)
		}
	})
}
