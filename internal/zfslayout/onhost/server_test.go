package onhost

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/systemd"
	"bulkhead/internal/zfslayout"
)

// units is a systemd with one service.
type units struct {
	main int
	load string
}

func (u units) Unit(_ context.Context, name string) (*systemd.Unit, error) {
	return &systemd.Unit{Name: name, ActiveState: "active", MainPID: u.main, LoadState: u.load}, nil
}
func (units) Start(context.Context, string) error       { return nil }
func (units) Stop(context.Context, string) error        { return nil }
func (units) ResetFailed(context.Context, string) error { return nil }

// A server is stopped with a service only where that is the server's own: its main process, or the one that starts it
// anew. Below a cluster manager or cron it is not.
func TestStartOf(t *testing.T) {
	id := procfs.ID{PID: 100, Start: 7}
	procs := []procfs.Process{{ID: id, Cgroups: map[string]string{"": "/system.slice/db.service/sub"}},
		{ID: procfs.ID{PID: 50}}}
	inst := engine.Instance{Engine: engine.MySQL, Main: id, Members: []engine.Member{{ID: id, Part: engine.PartMain},
		{ID: procfs.ID{PID: 50}, Part: engine.PartSupervisor}}}
	proc := procfs.New(sysroot.New(t.TempDir()))
	for main, own := range map[int]bool{100: true, 50: true, 1: false, 0: false, 51: false} {
		got := startOf(t.Context(), proc, inst, procs, nil, units{main: main})
		if own != (got == zfslayout.Start{Unit: "db.service"}) || own != (got.Trouble == "") {
			t.Errorf("main process %d: %+v", main, got)
		}
	}
	for load, trouble := range map[string]string{systemd.LoadMasked: "masked", systemd.LoadNotFound: "no such unit",
		systemd.LoadLoaded: ""} {
		got := startOf(t.Context(), proc, inst, procs, nil, units{main: 100, load: load})
		if (trouble == "") != (got.Unit == "db.service") || !strings.Contains(got.Trouble, trouble) {
			t.Errorf("a unit that is %s: %+v", load, got)
		}
	}
	other := engine.Instance{Engine: engine.MySQL, Main: procfs.ID{PID: 101}, Port: 3307}
	procs = append(procs, procfs.Process{ID: other.Main, Cgroups: procs[0].Cgroups})
	got := startOf(t.Context(), proc, inst, procs, []engine.Instance{inst, other}, units{main: 100})
	if !strings.Contains(got.Trouble, "mysql3307") {
		t.Errorf("%+v", got)
	}
	if got := startOf(t.Context(), proc, inst, procs[:1], nil, nil); !strings.Contains(got.Trouble, "supervisor") {
		t.Errorf("without systemd: %+v", got)
	}
}

// A server on the directory that is kept is not the server of the plan, whatever its port.
func TestIn(t *testing.T) {
	dir := t.TempDir()
	data, link := filepath.Join(dir, "data"), filepath.Join(dir, "link")
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(data, link); err != nil {
		t.Fatal(err)
	}
	p := &zfslayout.Plan{Instance: "mysql3306", DataDir: data, Told: "/told"}
	for name, is := range map[string]bool{data: true, data + "/": true, link: true, "/told": true,
		data + zfslayout.Suffix: false, dir: false, "": false} {
		if in(p, name) != is {
			t.Errorf("%q", name)
		}
	}
}

// A process that has a file below a directory open holds it, and one that has another one open does not.
func TestHolders(t *testing.T) {
	h := &host.Host{Proc: procfs.New(sysroot.New("/"))}
	if _, err := h.Proc.OpenFiles(1); err != nil {
		t.Skipf("only a root of the whole host sees what every process has open: %v", err)
	}
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, want := range map[string]int{dir: os.Getpid(), dir + "2": 0} {
		got, err := Holders(h)(t.Context(), []string{name})
		pid := 0
		if len(got) == 1 {
			pid = got[0].PID
		}
		if err != nil || len(got) > 1 || pid != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
}
