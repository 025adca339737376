package tunable_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/change"
	"bulkhead/internal/change/conformance"
	"bulkhead/internal/linux/tunable"
)

// disk are the files of a disk.
func disk(name, scheduler string, more ...string) map[string]string {
	dir := "sys/block/" + name + "/"
	files := map[string]string{dir + "queue/scheduler": scheduler + "\n", dir + "queue/nr_requests": "256\n",
		dir + "queue/wbt_lat_usec": "75000\n", dir + "queue/read_ahead_kb": "128\n"}
	for i := 0; i+1 < len(more); i += 2 {
		files[dir+more[i]] = more[i+1]
	}
	return files
}

func TestQueueConformance(t *testing.T) {
	h := newHost(t, disk("vda", "mq-deadline", "serial", "abc\n"))
	for _, tt := range []conformance.Case{
		{Target: tunable.Target("disk serial:abc/read_ahead_kb"), Values: []string{"16", "4096"},
			Gone: "serial:other/read_ahead_kb"},
		{Target: tunable.Target("disk vda/scheduler"), Values: []string{"none", "bfq"}, Gone: "vdb/scheduler"},
	} {
		tt.Actuator = h.Actuators()[tt.Target.Kind]
		t.Run(string(tt.Target.Kind), func(t *testing.T) { conformance.Run(t, tt) })
	}
	if _, lasts := h.Actuators()[tunable.KindQueueByName].(change.Lasting); lasts {
		t.Error("the name of a disk is taken to last over a boot")
	}
}

// What the kernel sets anew with the scheduler comes back with it.
func TestSchedulerTakesOthersAlong(t *testing.T) {
	h := newHost(t, disk("vda", "none [mq-deadline]", "serial", "abc"))
	scheduler, requests := tunable.Target("disk serial:abc/scheduler"), tunable.Target("disk serial:abc/nr_requests")
	a := h.Actuators()[tunable.KindQueue]
	old, err := a.Read(t.Context(), scheduler.Addr)
	if err != nil || old != "mq-deadline; wbt_lat_usec=75000; nr_requests=256" {
		t.Fatalf("it was %q, %v", old, err)
	}
	oldRequests, _ := a.Read(t.Context(), requests.Addr)
	for file, value := range map[string]string{"scheduler": "[none] mq-deadline", "nr_requests": "128",
		"wbt_lat_usec": "2000"} { // as after the switch, with nr_requests written by us
		at := filepath.Join(h.Dir, "sys/block/vda/queue", file)
		if err := os.WriteFile(at, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if undone, err := a.Undo(t.Context(), change.Of(requests, oldRequests, "128")); undone || err != nil {
		t.Errorf("a number of requests of mq-deadline was written under none: %v", err)
	}
	if _, err := a.Undo(t.Context(), change.Of(scheduler, old, "none")); err != nil {
		t.Error(err)
	}
	// killed between the two writes
	if err := os.WriteFile(filepath.Join(h.Dir, "sys/block/vda/queue/nr_requests"), []byte("64"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Undo(t.Context(), change.Of(scheduler, old, "none")); err != nil {
		t.Error(err)
	}
	if got, err := a.Read(t.Context(), scheduler.Addr); err != nil || got != old {
		t.Errorf("it is %q, %v; want %q", got, err, old)
	}
}

// A disk has the name that lasts, whichever it was given; two of the same identity and one without have none.
func TestFind(t *testing.T) {
	files := disk("vda", "none", "serial", "abc")
	for _, more := range []map[string]string{
		disk("sda", "none", "device/wwid", "t10.ATA  Disk  1\n"), disk("sdb", "none", "device/wwid", "naa.5"),
		disk("sdc", "none", "device/wwid", "naa.5"), disk("vdb", "none"), disk("nvme0n1", "none", "wwid", "eui.1"),
		disk("nvme0c0n1", "none", "wwid", "eui.1"), disk("dm-0", "none", "dm/uuid", "LVM-x"),
		disk("vdc", "none", "serial", `a"b`),
	} {
		for name, text := range more {
			files[name] = text
		}
	}
	h := newHost(t, files)
	link := filepath.Join(h.Dir, "dev/disk/by-id/virtio-abc")
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../vda", link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(h.Dir, "dev/vda"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][2]string{
		"disk vda/scheduler":                         {"disk serial:abc/scheduler", "vda"},
		"disk /dev/disk/by-id/virtio-abc/scheduler":  {"disk serial:abc/scheduler", "vda"},
		"disk serial:abc/scheduler":                  {"disk serial:abc/scheduler", "vda"},
		"disk sda/scheduler":                         {"disk wwid:t10.ATA  Disk  1/scheduler", "sda"},
		"disk sdb/scheduler":                         {"disk sdb/scheduler", "sdb"},
		"disk vdb/scheduler":                         {"disk vdb/scheduler", "vdb"},
		"disk vdc/scheduler":                         {"disk vdc/scheduler", "vdc"},
		"disk nvme0n1/scheduler":                     {"disk wwid:eui.1/scheduler", "nvme0n1"},
		"disk dm-0/read_ahead_kb":                    {"disk dm:LVM-x/read_ahead_kb", "dm-0"},
		"disk sdz/scheduler":                         {"disk sdz/scheduler", ""},
		"disk /dev/disk/by-id/virtio-none/scheduler": {"disk /dev/disk/by-id/virtio-none/scheduler", ""},
		"vm.swappiness":                              {"vm.swappiness", ""},
	} {
		if lasting, disk := h.Find(name); lasting != want[0] || disk != want[1] {
			t.Errorf("%s is %q, %q; want %q", name, lasting, disk, want)
		}
	}
}

func TestCheckQueue(t *testing.T) {
	for setting, fine := range map[string]bool{
		"disk vda/scheduler=none": true, "disk /dev/disk/by-id/a-b_1/scheduler=bfq": true,
		"disk wwid:t10.ATA  x/rotational=0": true, "disk vda/write_cache=write back": true,
		"disk vda/write_cache=write through": false, "disk vda/stat=1": false, "disk vda=1": false,
		"disk vda/scheduler=none mq": false, "disk ../x/scheduler=none": false, "disk /etc/x/scheduler=none": false,
		`disk serial:a"b/scheduler=none`: false, "disk vda/rotational=2": false, "disk vda/read_ahead_kb=16k": false,
		"disk /dev/../x/scheduler=none": false,
	} {
		name, value, _ := strings.Cut(setting, "=")
		if err := tunable.Check(name, value); (err == nil) != fine {
			t.Errorf("%s: %v", setting, err)
		}
	}
}

// The file of rules is one that udev reads, and is read back; the scheduler comes first.
func TestQueueFile(t *testing.T) {
	h := newHost(t, nil)
	file, exists := tunable.BootFile(tunable.KindQueue)
	if _, byName := tunable.BootFile(tunable.KindQueueByName); !exists || byName {
		t.Fatal("which kinds have a file")
	}
	value := tunable.Lines(map[string]string{"serial:abc/nr_requests": "128", "serial:abc/scheduler": "none",
		"wwid:t10.ATA  x/read_ahead_kb": "16"})
	if err := change.Set(t.Context(), h.Actuators()[tunable.KindBootFile], file, value); err != nil {
		t.Fatal(err)
	}
	const head = `ACTION=="add|change", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", `
	want := head + `ATTRS{serial}=="abc", ATTR{queue/scheduler}="none"` + "\n" +
		head + `ATTRS{serial}=="abc", ATTR{queue/nr_requests}="128"` + "\n" +
		head + `ATTRS{wwid}=="t10.ATA  x", ATTR{queue/read_ahead_kb}="16"` + "\n"
	if got := text(t, h, tunable.QueueFile); !strings.HasSuffix(got, "\n"+want) {
		t.Errorf("it is\n%s\nwant\n%s", got, want)
	}
}

// A rule of udev that is read later and may be for the disk is named.
func TestOverruledByRules(t *testing.T) {
	target := tunable.Target("disk serial:abc/scheduler")
	for rule, want := range map[string]string{
		`KERNEL=="vd[a-z]", ATTR{queue/scheduler}="bfq"`: "line 2 of /etc/udev/rules.d/99-x.rules sets bfq",
		`ACTION=="add|change", KERNEL=="sd*|vd*", ATTR{queue/rotational}=="1", ATTR{queue/scheduler}="bfq"`://
		"line 2 of /etc/udev/rules.d/99-x.rules sets bfq",
		`KERNEL=="sd[a-z]", ATTR{queue/scheduler}="bfq"`:                "",
		`KERNEL!="vd*", ATTR{queue/scheduler}="bfq"`:                    "",
		`ATTR{queue/rotational}=="0", ATTR{queue/scheduler}="bfq"`:      "",
		`KERNEL=="vd*", ATTR{queue/scheduler}="none"`:                   "",
		`KERNEL=="vd*", ATTR{queue/read_ahead_kb}="8"`:                  "",
		`KERNEL=="vd*", ATTR{queue/scheduler}=="bfq", RUN+="/bin/true"`: "",
		`# KERNEL=="vd*", ATTR{queue/scheduler}="bfq"`:                  "",
	} {
		files := disk("vda", "none", "serial", "abc", "queue/rotational", "1\n")
		files["etc/udev/rules.d/99-x.rules"] = "# theirs\n" + rule + "\n"
		files["etc/udev/rules.d/60-x.rules"] = `ATTR{queue/scheduler}="kyber"`
		h := newHost(t, files)
		if got := tunable.Overruled(h.Root, map[change.Target]string{target: "none"})[target]; got != want {
			t.Errorf("%s: %q, want %q", rule, got, want)
		}
	}
}
