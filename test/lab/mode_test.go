package lab

import (
	"strings"
	"testing"
)

func TestModeChecksWhatIsMounted(t *testing.T) {
	v1, v2 := "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0", "cgroup2 /sys/fs/cgroup cgroup2 rw,relatime 0 0"
	own := "cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,name=systemd 0 0"
	below := strings.Replace(v2, "/sys/fs/cgroup", "/sys/fs/cgroup/unified", 1)
	for _, c := range []struct {
		mode   string
		mounts []string
		ok     bool
	}{
		{"unified", []string{v2}, true}, {"unified", []string{v2, v1}, false}, {"unified", nil, false},
		{"unified", []string{below}, false},
		{"hybrid", []string{v1, below}, true}, {"hybrid", []string{v1}, false}, {"hybrid", []string{below}, false},
		{"hybrid", []string{v1, own, below}, false},
		{"legacy", []string{v1}, true}, {"legacy", []string{v1, below}, false}, {"legacy", nil, false},
		{"unified", []string{"tmpfs /sys/fs/cgroup tmpfs rw 0 0"}, false}, {"unified", []string{"x"}, false},
		{"systemd-unified", []string{v2}, true},
		{"systemd-unified", []string{own, below}, false}, // what systemd 257 does when it is not forced is the reverse
		{"trixie-legacy", []string{v2}, false}, {"trixie-legacy", []string{own, v1}, true},
		{"trixie-legacy", []string{v1}, false},
		{"bullseye-hybrid", []string{own, v1, below}, true}, {"bullseye-hybrid", []string{v1, below}, false},
	} {
		modes, err := ParseModes(c.mode)
		if err != nil || len(modes) != 1 {
			t.Fatal(modes, err)
		}
		if err := modes[0].Check(c.mounts); (err == nil) != c.ok {
			t.Errorf("mode %q of %q: %v", c.mode, c.mounts, err)
		}
	}
}

func TestParseModes(t *testing.T) {
	for text, want := range map[string]int{"unified": 1, " unified  trixie-legacy ": 2, "all": len(Modes) + len(Alone),
		"advice": 1} {
		if got, err := ParseModes(text); err != nil || len(got) != want {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", " ", "v2", "unified v2", "trixie-hybrid"} {
		if got, err := ParseModes(text); err == nil {
			t.Errorf("%q: %v and no error", text, got)
		}
	}
}

func TestModesRun(t *testing.T) {
	for _, c := range []struct {
		mode, test  string
		asked, runs bool
	}{
		{"deb-trixie", "TestDebPackageAfterReboot", false, true}, {"deb-trixie", "TestInstalled", false, false},
		{"deb-trixie", "TestInstalled", true, false}, {"deb-plain", "TestInitPackage", false, true},
		{"deb-plain", "TestInitInstalled", false, false},
		{"systemd-unified", "TestDebPackage", false, false}, {"systemd-unified", "TestDebPackage", true, true},
		{"systemd-unified", "TestInstalled", false, true}, {"unified", "TestInitPackage", false, false},
	} {
		modes, err := ParseModes(c.mode)
		if err != nil {
			t.Fatal(err)
		}
		if got := modes[0].Runs("test/packaging", c.test, c.asked); got != c.runs {
			t.Errorf("mode %s, asked %v: it runs %s: %v, want %v", c.mode, c.asked, c.test, got, c.runs)
		}
	}
}

func TestKernelWordsOfAMode(t *testing.T) {
	for name, want := range map[string]string{
		"hybrid":          "",
		"systemd-unified": "systemd.unified_cgroup_hierarchy=1",
		"bullseye-hybrid": "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=0",
		"systemd-legacy":  "systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1",
		"trixie-legacy": "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1 systemd.unified_cgroup_hierarchy=0 " +
			"systemd.legacy_systemd_cgroup_controller=1",
	} {
		modes, err := ParseModes(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(modes[0].Kernel(), " "); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
