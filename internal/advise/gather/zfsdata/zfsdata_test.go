package zfsdata

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/fact"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/engine/datafiles"
	"bulkhead/internal/host/hosttest"
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
