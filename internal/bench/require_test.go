package bench

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFind(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"newname", "oldname"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	found, err := find([]program{{name: "newname", pkg: "a"}, {name: "newer", pkg: "b", older: "oldname"}})
	if err != nil || found["newname"] != filepath.Join(dir, "newname") || found["newer"] != filepath.Join(dir, "oldname") {
		t.Errorf("found %v, %v", found, err)
	}
	_, err = find([]program{{name: "newname", pkg: "a"}, {name: "absent1-x", pkg: "b"}, {name: "absent2-x", pkg: "b"}, {name: "absent3-x", pkg: "c"}})
	var required *RequirementError
	if !errors.As(err, &required) {
		t.Fatalf("error is %v", err)
	}
	if !strings.Contains(required.Error(), "absent1-x, absent2-x, absent3-x") || required.Hint != "apt-get install --no-install-recommends b c" {
		t.Errorf("it says %q, hint %q: want every program and each package once", required, required.Hint)
	}
}

func TestList(t *testing.T) {
	scenarios := List()
	i := slices.IndexFunc(scenarios, func(s Scenario) bool { return s.Name == "demo" })
	if i < 0 {
		t.Fatal("the demo is not listed")
	}
	if s := scenarios[i]; s.Takes < 3*time.Minute || s.Takes > 8*time.Minute || !slices.Equal(s.Needs, []string{"mariadb-server", "sysbench"}) {
		t.Errorf("the demo takes %v and needs %v", s.Takes, s.Needs)
	}
	if smoke := estimate(DemoOptions{Smoke: true}.withDefaults()); smoke > 75*time.Second {
		t.Errorf("the smoke run takes %v", smoke)
	}
}

func TestSizes(t *testing.T) {
	small, err := sizesFor(machine{cpus: 2, available: 512 << 20})
	if err != nil || small.hogs != 16 || small.threads != 4 || small.cpuLimit != 1 || small.memory != 128<<20 || small.memoryMax != 64<<20 {
		t.Errorf("on a small machine %+v, %v", small, err)
	}
	large, err := sizesFor(machine{cpus: 64, available: 1 << 40})
	if err != nil || large.hogs != 512 || large.threads != 128 || large.memory != 1<<30 || large.memoryMax != 256<<20 {
		t.Errorf("on a large machine %+v, %v", large, err)
	}
	var required *RequirementError
	if _, err := sizesFor(machine{cpus: 1, available: 100 << 20}); !errors.As(err, &required) {
		t.Errorf("with 100 MiB: %v", err)
	}
}

func TestCleanVersion(t *testing.T) {
	for in, want := range map[string]string{
		"5.5.5-10.11.19-MariaDB-0+deb12u1": "10.11.19-MariaDB",
		"11.8.2-MariaDB":                   "11.8.2-MariaDB",
		"8.0.35":                           "8.0.35",
	} {
		if got := cleanVersion(in); got != want {
			t.Errorf("version %q is read as %q, want %q", in, got, want)
		}
	}
}
