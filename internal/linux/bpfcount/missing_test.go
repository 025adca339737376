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

// Objects are those of their sources: who changes one of these runs `make bpf`.
func TestObjectsAreOfTheirSources(t *testing.T) {
	for name, embedded := range map[string][]byte{"count": object, "block": blockObject,
		"reclaim": reclaimObject} {
		sums, err := os.ReadFile(name + ".bpf.sums")
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(sums)), "\n")
		if len(lines) != 3 || len(embedded) == 0 {
			t.Fatalf("%s.bpf.sums has %d lines, want 3; the object has %d bytes", name, len(lines), len(embedded))
		}
		for _, line := range lines {
			want, file, _ := strings.Cut(line, "  ")
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprintf("%x", sha256.Sum256(data)); got != want {
				t.Errorf("%s is not that of %s.bpf.sums: run `make bpf`", file, name)
			}
		}
	}
}

// What is used of the objects by name is there, and what the programs need of the licence.
func TestObjectsHaveWhatIsUsed(t *testing.T) {
	cpu, err := (&Counter{cpus: 4}).spec(32)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := diskSpec(32)
	if err != nil {
		t.Fatal(err)
	}
	reclaim, err := reclaimSpec(32)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []struct {
		spec     *ebpf.CollectionSpec
		programs []string
		entries  map[string]uint32
		sizes    map[string]uint32
	}{
		{cpu, programs, map[string]uint32{"blame": 4 * 32 * 32, "counts": 4 * 32, "cpu_state": 4,
			"groups": directoriesMost}, map[string]uint32{"counts": countSize}},
		{disk, diskPrograms, map[string]uint32{"blame": 32 * 32, "counts": 32, "devices": mostDevices,
			"groups": directoriesMost, "owners": directoriesMost}, map[string]uint32{"counts": diskCountSize,
			"devices": deviceSize}},
		{reclaim, reclaimPrograms, map[string]uint32{"stalls": 32, "groups": directoriesMost},
			map[string]uint32{"stalls": stallsSize}},
	} {
		for _, name := range o.programs {
			if p := o.spec.Programs[name]; p == nil || p.License != "GPL" || p.Type != ebpf.Tracing {
				t.Errorf("%s: %+v", name, p)
			}
		}
		if len(o.spec.Programs) != len(o.programs) {
			t.Errorf("the object has %d programs, and %d are attached", len(o.spec.Programs), len(o.programs))
		}
		for name, want := range o.entries {
			if m := o.spec.Maps[name]; m == nil || m.MaxEntries != want {
				t.Errorf("%s: %+v, want %d entries", name, m, want)
			}
		}
		for name, want := range o.sizes {
			if m := o.spec.Maps[name]; m.ValueSize != want {
				t.Errorf("%s has values of %d bytes, want %d", name, m.ValueSize, want)
			}
		}
	}
	if cpu.Variables["generation"] == nil {
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
