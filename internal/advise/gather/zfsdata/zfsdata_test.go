package zfsdata

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/disks"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/zfs"
)

// typed is a pool that was made by the commands of a listing.
type typed struct {
	local   map[string]map[string]string // properties by dataset
	order   []string
	vdevs   string // lines of zpool status
	options map[string]string
	arcMax  int64
}

func read(t *testing.T, listing string) *typed {
	t.Helper()
	w := &typed{local: map[string]map[string]string{}, options: map[string]string{}}
	for line := range strings.Lines(listing) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] == "#":
		case f[1] == "=":
			w.options[f[0]] = f[2]
		case f[0] == "echo":
			w.arcMax, _ = strconv.ParseInt(f[1], 10, 64)
		case f[0]+f[1] == "zpoolcreate":
			w.vdevs = "\t" + f[2] + " ONLINE 0 0 0\n\t  " + f[3] + " ONLINE 0 0 0\n"
		case f[0]+f[1] == "zpooladd":
			w.vdevs += "\t" + strings.Replace(f[3], "log", "logs", 1) + "\n\t  " + f[4] + " ONLINE 0 0 0\n"
		case f[0]+f[1] == "zfscreate":
			w.order = append(w.order, f[2])
			w.local[f[2]] = map[string]string{}
		case f[0]+f[1] == "zfsset":
			name, value, _ := strings.Cut(f[2], "=")
			if digits, is := strings.CutSuffix(value, "k"); is {
				n, _ := strconv.Atoi(digits)
				value = strconv.Itoa(n << 10)
			}
			w.local[f[3]][name] = value
		default:
			t.Fatalf("not understood: %q", line)
		}
	}
	return w
}

// tools stand for the programs on that pool, with the defaults of ZFS on Linux 0.7.
func (w *typed) tools(t *testing.T, more string) zfs.Tools {
	t.Helper()
	out := ""
	for _, set := range w.order {
		for name, value := range map[string]string{"recordsize": "131072", "compression": "off", "atime": "on",
			"xattr": "on", "primarycache": "all", "logbias": "latency", "sync": "standard"} {
			source := "default"
			for at := set; at != "."; at = filepath.Dir(at) {
				if v, is := w.local[at][name]; is {
					if value, source = v, "local"; at != set {
						source = "inherited from " + at
					}
					break
				}
			}
			out += set + "\t" + name + "\t" + value + "\t" + source + "\n"
		}
	}
	script := "#!/bin/sh\n" + more + "case $1 in\nget) cat <<'END'\n" + out + "END\n;;\n" +
		"list) printf 'mysqldata\\tONLINE\\t1056964608\\t20447232\\t1036517376\\t1\\t0\\n' ;;\n" +
		"status) cat <<'END'\n\tNAME STATE READ WRITE CKSUM\n" + w.vdevs + "errors: No known data errors\nEND\nesac\n"
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return zfs.Tools{ZFS: file, Zpool: file, Limit: time.Minute}
}

// findings are the rules of ZFS that are not kept for a MySQL 5.7 on that pool, and the evidence of each.
func (w *typed) findings(t *testing.T, arcMax int64) map[string]string {
	t.Helper()
	data, log := "mysqldata/mysql/data", "mysqldata/mysql/log"
	l := &Layout{Module: "0.7.3", Cache: &zfs.Cache{Asked: w.arcMax, Max: arcMax}, points: map[string]string{},
		Uses: map[string]Use{},
		Places: []Place{{Instance: "mysql3306", Kind: datafiles.Data, Path: w.local[data]["mountpoint"], Dataset: data},
			{Instance: "mysql3306", Kind: datafiles.Redo, Path: w.options["innodb_log_group_home_dir"], Dataset: log}}}
	for set, properties := range w.local {
		l.points[properties["mountpoint"]] = set
	}
	tools := w.tools(t, "")
	if err := l.properties(t.Context(), tools); err != nil {
		t.Fatal(err)
	}
	var err error
	if l.Pools, err = tools.Pools(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.use(t.Context(), hosttest.Load(t, "storage/zfs"), tools, nil); err != nil &&
		!errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	s := &fact.Set{Host: l.Host(), Mounts: []fact.Object{{Name: "/var/lib/mysql", Values: l.Mount("/var/lib/mysql")}},
		Instances: []fact.Object{{Name: "mysql3306", Values: l.Instance("mysql3306")}}}
	for name, is := range map[string]any{"instance.engine": "mysql", "instance.version": "5.7.20",
		"instance.data_type": "zfs", "instance.page_size": int64(16384), "instance.buffer": int64(128 << 20),
		"instance.doublewrite": w.options["innodb_doublewrite"] != "0",
		"instance.checksum":    w.options["innodb_checksum_algorithm"]} {
		s.Instances[0].Values[name] = fact.Known(is, "my.cnf")
	}
	s.Host["host.memory"] = fact.Known(int64(2<<30), "document")
	s.Host["host.zfs_cache"] = fact.Known(arcMax, zfs.ArcstatsFile)
	s.Mounts[0].Values["mount.type"] = fact.Known("zfs", "document")
	s.Mounts[0].Values["mount.databases"] = fact.Known([]string{"mysql3306"}, "document")
	rules, err := rule.Library()
	if err != nil {
		t.Fatal(err)
	}
	rules.Rules = slices.DeleteFunc(rules.Rules, func(r *rule.Rule) bool { return !strings.HasPrefix(r.ID, "ZFS-") })
	found := map[string]string{}
	for _, f := range advise.Run(rules, s, advise.Options{}).Findings {
		found[f.Rule] = fmt.Sprint(f.Evidence)
	}
	return found
}

// Each slip of the document that leaves something to see is named, with what was set as evidence; with each put right
// there is nothing.
func TestDocumentOf2017(t *testing.T) {
	text, err := os.ReadFile("testdata/percona-2017.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"ZFS-03": "gzip zfs get compression mysqldata/mysql/data, inherited from mysqldata/mysql",
		"ZFS-08": "on is dir before 2.3",
		"ZFS-14": "/dev/shm/zil_slog.img",
		"ZFS-15": "/dev/shm/l2arc.img",
		"ZFS-24": "none",
		"ZFS-25": "64 MiB " + zfs.ArcMaxFile,
		"ZFS-27": "/mnt/zfs.img zpool status -P mysqldata",
		"ZFS-28": "/mnt/zfs.img",
		"ZFS-32": "/dev/shm/l2arc.img",
	}
	got := read(t, string(text)).findings(t, 512<<20)
	for id, evidence := range want {
		if !strings.Contains(got[id], evidence) {
			t.Errorf("%s: %q has no %q", id, got[id], evidence)
		}
	}
	for id := range got {
		if want[id] == "" {
			t.Errorf("found and not there: %s %s", id, got[id])
		}
	}
	right := strings.NewReplacer("compression=gzip", "compression=lz4", "zfs set atime=off mysqldata/mysql\n",
		"zfs set atime=off mysqldata/mysql\nzfs set xattr=sa mysqldata/mysql\n", "/mnt/zfs.img\n", "/dev/sdb1\n",
		"= none", "= crc32", "zpool add mysqldata log /dev/shm/zil_slog.img\n", "",
		"zpool add mysqldata cache /dev/shm/l2arc.img\n", "").Replace(string(text))
	w := read(t, right)
	w.vdevs = "\tmysqldata ONLINE 0 0 0\n\t  mirror-0 ONLINE 0 0 0\n\t    /dev/sdb1 ONLINE\n\t    /dev/sdc1 ONLINE\n"
	if got := w.findings(t, 64<<20); len(got) > 0 {
		t.Errorf("all is put right, and found: %q", got)
	}
}

// A pool that hangs costs its time, and the layout says so.
func TestHungPool(t *testing.T) {
	h := hosttest.Load(t, "storage/zfs")
	w := &typed{}
	start := time.Now()
	l, err := Read(t.Context(), h, w.tools(t, "sleep 20\n"), 200*time.Millisecond)
	if err != nil || time.Since(start) > 2*time.Second {
		t.Fatalf("after %s: %v", time.Since(start), err)
	}
	if !strings.Contains(strings.Join(l.Trouble, "\n"), "no answer in time: a pool may hang") {
		t.Errorf("%q", l.Trouble)
	}
	if v := l.Mount("/tank/mysql")["mount.pool_free"]; !strings.Contains(v.Unknown, "may hang") {
		t.Errorf("%+v", v)
	}
}

// kstats are files of the module on a host: the intent log as before and since 2.2, and the cache.
func kstats(t *testing.T, files map[string]string) *host.Host {
	t.Helper()
	all := map[string]string{}
	for name, text := range files {
		all["/proc/spl/kstat/zfs/"+name] = "30 1 0x01 7 2160 1000000000 101000000000\nname type data\n" + text
	}
	return &host.Host{Root: sysroot.New(linuxtest.Files(t, all, 0o644))}
}

// What is synced, how long that waits, and what fell out of the cache become facts with the time they were counted in;
// of several pools of an old module nothing is said.
func TestUse(t *testing.T) {
	const pools = "tank\tONLINE\t1000\t1\t999\t1\t12\n"
	arc := "hits 4 900000\nmisses 4 100000\nmru_ghost_hits 4 30000\nmfu_ghost_hits 4 15000\nl2_hits 4 1\n" +
		"l2_misses 4 99\nl2_size 4 4096\nc_max 4 9\n"
	vdevs := "\tNAME STATE READ\n\ttank ONLINE\n\t  mirror-0 ONLINE\n\t    /dev/sdb1 ONLINE\n\t    /dev/sdc1 ONLINE\n" +
		"\tlogs\n\t  /dev/zram1 ONLINE\n\tcache\n\t  /dev/ram0 ONLINE\n\t  /dev/sdx ONLINE\nerrors: none\n"
	together := fact.Unknown("before OpenZFS 2.2 the module counts those of all pools in one")
	for name, c := range map[string]struct {
		files map[string]string
		pools string
		syncs fact.Value
	}{
		"2.1": {map[string]string{"zil": "zil_commit_count 4 12000\nzil_itx_metaslab_normal_count 4 5\n",
			"arcstats": arc, "tank/objset-0x36": "dataset_name 7 tank/a\nwrites 4 9\n"}, pools,
			fact.Known(int64(120), "zil_commit_count, over 1m40s")},
		"2.1, two pools": {map[string]string{"zil": "zil_commit_count 4 12000\n", "arcstats": arc},
			pools + "b\tONLINE\t1000\t1\t999\t1\t12\n", together},
		"2.2, two pools": {map[string]string{"zil": "zil_commit_count 4 99999\n", "arcstats": arc,
			"tank/objset-0x36": "dataset_name 7 tank/a\nzil_commit_count 4 500\n",
			"tank/objset-0x37": "dataset_name 7 tank/b\nzil_commit_count 4 700\n",
			"b/objset-0x37":    "dataset_name 7 b\nzil_commit_count 4 7000\n"},
			pools + "b\tONLINE\t1000\t1\t999\t1\t12\n", fact.Known(int64(12), "zil_commit_count, over 1m40s")},
		"0.7": {map[string]string{"arcstats": arc}, pools, together},
	} {
		tools := zfs.Tools{ZFS: "zfs", Zpool: "zpool", Exec: func(_ string, args ...string) (string, error) {
			switch args[0] {
			case "list":
				return c.pools, nil
			case "status":
				return vdevs, nil
			}
			return "tank\t1\t1\t1\t1\t1\t1\t900000\t9000000\t300000\t4000000\t0\t200000\t-\t7000\n", nil
		}}
		l := &Layout{Module: "2", Uses: map[string]Use{}, points: map[string]string{"/db": "tank/a"},
			Places: []Place{{Instance: "mysql3306", Dataset: "tank/a"}, {Instance: "mysql3306", Dataset: "tank/b"},
				{Instance: "mysql3307", Dataset: "tank/c", Expendable: true}, {Instance: "mysql3308", Dataset: "b"}}}
		var err error
		if l.Pools, err = tools.Pools(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.use(t.Context(), kstats(t, c.files), tools, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		v, h := l.Mount("/db"), l.Host()
		for fact, want := range map[string]any{"mount.pool_sync_wait": int64(4200),
			"mount.pool_logs":      []string{"/dev/zram1"},
			"mount.pool_log_files": []string{"/dev/zram1"}, "mount.pool_cache_memory": []string{"/dev/ram0"},
			"mount.pool_keeps": []string{"mysql3306"}} {
			if !reflect.DeepEqual(v[fact].Is, want) {
				t.Errorf("%s: %s is %+v, want %v", name, fact, v[fact], want)
			}
		}
		if v["mount.pool_syncs"] != c.syncs {
			t.Errorf("%s: %+v", name, v["mount.pool_syncs"])
		}
		for fact, want := range map[string]int64{"host.zfs_misses": 1000, "host.zfs_ghosts": 45, "host.zfs_l2_hits": 1,
			"host.zfs_l2_size": 4096} {
			if h[fact].Is != want {
				t.Errorf("%s: %s is %+v, want %d", name, fact, h[fact], want)
			}
		}
	}
}

// A data set may be lost that a person marked so, or that is a copy's; what is inherited from a copy is not.
func TestExpendable(t *testing.T) {
	for _, c := range []struct {
		name, value, source string
		want                bool
	}{{Expendable, "on", "local", true}, {Expendable, "on", "inherited from tank", true}, {Expendable, "off", "local",
		false}, {zfs.OfCopy, "ID", "local", true}, {zfs.OfCopy, "ID", "inherited from tank/dev1", false},
		{"other:expendable", "on", "local", false}} {
		d := zfs.Dataset{Properties: map[string]zfs.Property{c.name: {Value: c.value, Source: c.source}}}
		if got := expendable(d); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// A database with its files on a volume of a pool, or in an image on it, is one that the pool keeps, too.
func TestKeepsOnVolumes(t *testing.T) {
	pool := &blockdev.Layer{Kind: blockdev.Pool, Name: "tank"}
	on := func(l blockdev.Layer, below *blockdev.Layer) *blockdev.Layer {
		l.Below = []blockdev.Link{{Layer: below}}
		return &l
	}
	zvol := on(blockdev.Layer{Kind: blockdev.Stacked}, pool)
	ext4 := blockdev.Layer{Kind: blockdev.Filesystem, Type: "ext4", Filesystem: blockdev.OnDevice}
	d := &disks.Disks{Storage: blockdev.NewStorage(nil, nil)}
	for port, l := range map[int]*blockdev.Layer{3306: on(ext4, zvol), 3307: &ext4, 3308: nil} {
		d.Databases = append(d.Databases, disks.DatabaseFiles{
			Instance: engine.Instance{Engine: engine.MySQL, Port: port},
			Files:    []disks.PlacedFiles{{Place: blockdev.Place{Layer: l}}}})
	}
	l := &Layout{Uses: map[string]Use{}, points: map[string]string{}, Pools: []zfs.Pool{{Name: "tank"}, {Name: "b"}}}
	l.place(d)
	tools := zfs.Tools{Exec: func(string, ...string) (string, error) { return "", nil }}
	if err := l.use(t.Context(), kstats(t, map[string]string{"arcstats": "hits 4 1\n"}), tools, nil); err != nil {
		t.Fatal(err)
	}
	if keeps := l.Uses["tank"].Keeps; !slices.Equal(keeps, []string{"mysql3306"}) || len(l.Uses["b"].Keeps) > 0 {
		t.Errorf("%q, and of another pool %q", keeps, l.Uses["b"].Keeps)
	}
}
