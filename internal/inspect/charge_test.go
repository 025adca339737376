package inspect

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/classify"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/metrics"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/bpf"
	"bulkhead/internal/plan"
	"bulkhead/internal/snapshot"
	"bulkhead/internal/transaction"
)

// fixture is a host below a directory with one more process, 4200, and more files.
func fixture(t *testing.T, files map[string]string) (h *host.Host, v *transaction.View, root string) {
	t.Helper()
	root = linuxtest.Unpack(t, linuxtest.Text(t, "hybrid"))
	linuxtest.Process(t, root, 4845, 4200, 1, 77, "/usr/sbin/mysqld")
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	h = host.New(root)
	facts, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	return h, &transaction.View{Snapshot: &snapshot.Snapshot{
		Facts: facts, Tree: cgroup.NewWith(facts.Hierarchies, cgroup.Options{Root: root}),
	}}, root
}

// The memory of a process is told by the group that pays for it, the most first; its own group is marked, and what no
// group pays for has none.
func TestChargesNameWhoPays(t *testing.T) {
	const memory = "sys/fs/cgroup/memory"
	words := func(w []uint64) string {
		var b []byte
		for _, v := range w {
			b = binary.NativeEndian.AppendUint64(b, v)
		}
		return string(b)
	}
	const pages, present = 7, 1 << 63
	var pagemap [pages]uint64
	var flags, groups [1 + pages]uint64 // by page frame; frame 0 stands for one that is hidden
	for i := range pagemap {
		pagemap[i] = present | uint64(1+i)
	}
	h, v, root := fixture(t, map[string]string{
		memory + "/memory.stat":         "cache 0\n",
		memory + "/shop/memory.stat":    "cache 0\n",
		memory + "/shop/db/memory.stat": "cache 0\n",
		memory + "/backup/memory.stat":  "cache 0\n",
		"proc/4200/maps":                "0-7000 rw-p 00000000 00:00 0 \n",
		"proc/4200/pagemap":             words(pagemap[:]),
		"proc/kpageflags":               words(flags[:]),
	})
	inode := func(dir string) uint64 {
		info, err := os.Stat(v.Tree.Abs(cgroup.Dir{Hierarchy: "memory", Path: dir}))
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t).Ino
	}
	for i := range groups {
		switch {
		case i == 1:
			groups[i] = inode("/shop/db")
		case i > 1 && i < 6:
			groups[i] = inode("/backup")
		}
	}
	if err := os.WriteFile(filepath.Join(root, "proc/kpagecgroup"), []byte(words(groups[:])), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := charges(t.Context(), h, v, &procfs.Process{ID: procfs.ID{PID: 4200, Start: 77},
		Cgroups: map[string]string{"memory": "/shop/db"}})
	want := []Charge{{Dir: "/backup", Bytes: 4 * 4096}, {Bytes: 2 * 4096}, {Dir: "/shop/db", Own: true, Bytes: 4096}}
	if os.Getpagesize() == 4096 && (err != nil || !slices.Equal(got, want)) {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
}

// A connection that a database opened before it came into its group is told as one that no limit of the group holds;
// those of other processes, and of other groups, are not.
func TestSocketsFromBeforeTheGroup(t *testing.T) {
	h, v, root := fixture(t, nil)
	fds := filepath.Join(root, "proc/4200/fd")
	if err := os.MkdirAll(fds, 0o755); err != nil {
		t.Fatal(err)
	}
	for fd, to := range map[string]string{"3": "socket:[11]", "4": "/data/ibdata1", "5": "socket:[12]"} {
		if err := os.Symlink(to, filepath.Join(fds, fd)); err != nil {
			t.Fatal(err)
		}
	}
	db := procfs.Process{ID: procfs.ID{PID: 4200, Start: 77}}
	v.Members = []classify.Placement{{Group: "shop/orders", Process: db}}
	v.Network = &plan.Network{Ports: map[string][]uint16{"shop": {3306}}}
	made := []sockets.TCPSocket{{Inode: 11}, {Inode: 12, Listening: true}, {Inode: 13}}
	for group, want := range map[string][]sockets.TCPSocket{"shop": made[:2], "shop/orders": made[:2], "jobs": nil} {
		if got := outsideOf(h, v, group, made); !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", group, got, want)
		}
	}
	if !isPortOf(v, "shop", 3306) || isPortOf(v, "shop", 3307) || isPortOf(v, "jobs", 3306) {
		t.Error("port 3306, and no other one, is of shop, and of no other group")
	}
}

// What a group receives is told for each interface that has a limit for it, and of no other group.
func TestTrafficOfAGroup(t *testing.T) {
	_, v, _ := fixture(t, nil)
	slot := netshape.Slot(3)
	held := netshape.State{Device: tc.Device{Link: tc.Link{Name: "eth0", Index: 2}}}
	v.Network = &plan.Network{Slots: map[string]netshape.Slot{"shop": slot, "jobs": 4}, Devices: []plan.NetDevice{{
		State: netshape.State{Device: held.Device, Policers: []bpf.Program{{Name: bpf.PolicerName(slot.Class(), 2)}}},
	}}}
	v.Plan.Network = []netshape.Wanted{{Device: "eth0"}, {Device: "eth1"}}
	held.Policers = policersOf(v, "eth0")
	states := map[string]netshape.State{"eth0": held}
	source := trafficSourceOf(v)
	if !slices.Equal(source.policers["eth0"], held.Policers) {
		t.Errorf("programs on eth0: %+v", source.policers)
	}
	got := source.of("shop", states)
	if want := []metrics.InterfaceTraffic{{Device: "eth0", Direction: "ingress", Policed: true}}; got.Counted ||
		!slices.Equal(got.On, want) {
		t.Errorf("shop: %+v", got)
	}
	for _, other := range []string{"jobs", "unnumbered"} {
		if got := source.of(other, states); len(got.On) > 0 {
			t.Errorf("%s: %+v", other, got)
		}
	}
}
