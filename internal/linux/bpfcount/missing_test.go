package bpfcount

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The object is that of its source: who changes count.bpf.c runs `make bpf`.
func TestObjectIsOfItsSource(t *testing.T) {
	sums, err := os.ReadFile("count.bpf.sums")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(sums)), "\n")
	if len(lines) != 2 {
		t.Fatalf("count.bpf.sums has %d lines, want 2", len(lines))
	}
	for _, line := range lines {
		want, name, _ := strings.Cut(line, "  ")
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(data)); got != want {
			t.Errorf("%s is not that of count.bpf.sums: run `make bpf`", name)
		}
	}
	if string(object) == "" {
		t.Error("no object is embedded")
	}
}

// What is used of the object by name is there, and what the programs need of the licence.
func TestObjectHasWhatIsUsed(t *testing.T) {
	c := &Counter{cpus: 4}
	spec, err := c.spec(32)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range programs {
		if p := spec.Programs[name]; p == nil || p.License != "GPL" || p.Type != ebpf.Tracing {
			t.Errorf("%s: %+v", name, p)
		}
	}
	if len(spec.Programs) != len(programs) {
		t.Errorf("the object has %d programs, and %d are attached", len(spec.Programs), len(programs))
	}
	for name, want := range map[string]uint32{"blame": 4 * 32 * 32, "counts": 4 * 32, "cpu_state": 4} {
		if m := spec.Maps[name]; m == nil || m.MaxEntries != want {
			t.Errorf("%s: %+v, want %d entries", name, m, want)
		}
	}
	if size := spec.Maps["counts"].ValueSize; size != countSize {
		t.Errorf("a count has %d bytes, want %d", size, countSize)
	}
	if spec.Variables["generation"] == nil {
		t.Error("there is no generation")
	}
}

func TestWhy(t *testing.T) {
	for _, c := range []struct {
		err      error
		noBTF    bool
		lockdown string
		want     Why
	}{
		{fmt.Errorf("load: %w", unix.EPERM), false, "", NotAllowed},
		{fmt.Errorf("load: %w", unix.EPERM), true, "none integrity [confidentiality]\n", Lockdown},
		{fmt.Errorf("load: %w", unix.EPERM), false, "[none] integrity confidentiality\n", NotAllowed},
		{errors.New("load kernel spec: not there"), true, "", NoBTF},
		{fmt.Errorf("map blame: %w", ebpf.ErrNotSupported), false, "", OldKernel},
		{fmt.Errorf("attach: %w", &ebpf.VerifierError{Cause: unix.EACCES}), false, "", OtherReason},
		{fmt.Errorf("make a map: %w", unix.ENOMEM), false, "", OtherReason},
	} {
		got := why(c.err, c.noBTF, c.lockdown)
		if got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
		if e := (&MissingError{Why: got, Cause: c.err}); !errors.Is(e, c.err) ||
			!strings.Contains(e.Error(), reasons[got]) {
			t.Errorf("%v", e)
		}
	}
}

// A directory of cgroup v2 without CPU controller is none that the programs see threads in.
func TestDirectory(t *testing.T) {
	v1, with, without := t.TempDir(), t.TempDir(), t.TempDir()
	for _, file := range []string{with + "/cgroup.events", with + "/cpu.weight", without + "/cgroup.events"} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]error{v1: nil, with: nil, without: ErrNoController, v1 + "/gone": unix.ENOENT} {
		if _, err := Directory(dir); !errors.Is(err, want) {
			t.Errorf("%s: %v, wanted %v", dir, err, want)
		}
	}
}
