package zfsclone

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/backuplock"
	"bulkhead/internal/dbsnapshot"
	"bulkhead/internal/engine"
	"bulkhead/internal/linux/zfs"
)

var update = flag.Bool("update", false, "write the expected results anew")

// request is one for a copy of a MariaDB on two data sets.
func request(base string) Request {
	return Request{Name: "dev1", Base: filepath.Join(base, "copies"), Group: "dev1", Class: "developer", Port: 13306,
		ServerID: 1 << 30, Memory: 64 << 20, Snapshot: dbsnapshot.Set{Instance: "mysql3306", Name: "s", Complete: true,
			Position: backuplock.Position{Binlog: "bin.000002:6", GTID: "0-1-7"},
			Layout: dbsnapshot.Layout{Instance: "mysql3306", Engine: engine.MySQL, Flavor: engine.MariaDB,
				Version: "10.11.19-MariaDB", Program: "/usr/sbin/mariadbd", User: "mysql", DataDir: "/db/data",
				Datasets: []dbsnapshot.Dataset{{Name: "tank/my/data", Point: "/db/data"},
					{Name: "tank/my/log", Point: "/db/log"}},
				Settings: map[string]string{"datadir": "/db/data/", "log_bin": "ON", "log_bin_basename": "/db/log/bin",
					"log_bin_index": "/db/log/bin.index", "relay_log_basename": "/db/data/relay-bin",
					"relay_log_index":           "/db/data/relay-bin.index",
					"innodb_log_group_home_dir": "/db/log", "innodb_data_home_dir": "", "innodb_undo_directory": "./",
					"aria_log_dir_path": "/db/data/", "innodb_page_size": "16384", "innodb_undo_tablespaces": "0",
					"innodb_data_file_path": "ibdata1:12M:autoextend", "innodb_log_file_size": "33554432",
					"sql_mode": "STRICT_TRANS_TABLES,NO_ZERO_DATE"}}},
		Origins: []zfs.Dataset{{Name: "tank/my/data", Properties: map[string]zfs.Property{
			"recordsize":  {Value: "16384", Source: "local"},
			"compression": {Value: "lz4", Source: "inherited from tank"},
			"mountpoint":  {Value: "/db/data", Source: "local"}, "bulkhead:layout": {Value: "x", Source: "local"}}}}}
}

func mustMake(t *testing.T, r Request) *Plan {
	t.Helper()
	p, err := Make(r)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A copy has its own files in all places, the origin is as it was, and drop leaves nothing.
func TestCloneAndDrop(t *testing.T) {
	r := newRig(t)
	p := mustMake(t, request(r.pools.dir))
	if _, err := r.Clone(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if r.running != p.DataDir || !r.group {
		t.Errorf("server on %q, group %v", r.running, r.group)
	}
	data, log := filepath.Join(p.Dir(), "data"), filepath.Join(p.Dir(), "log")
	for name, want := range map[string]string{
		log + "/bin.index":             log + "/bin.000001\n" + log + "/bin.000002\n",
		data + "/relay-bin.index":      "./relay-bin.000001\n",
		data + "/shop/reports.isl":     data + "/elsewhere/reports.ibd",
		log + "/unrelated/index.txt":   "/db/log/stays\n",
		data + "/inside":               "events",
		data + "/near":                 "pages",
		p.Run() + "/../data/near":      "pages",
		data + "/written":              "by the copy",
		p.Dir() + "/data/mysql/db.frm": "x",
	} {
		if text, err := os.ReadFile(name); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if to, err := os.Readlink(data + "/certificate"); err != nil || to != "/etc/ssl/x.pem" {
		t.Errorf("%q, %v", to, err)
	}
	for _, name := range []string{data + "/auto.cnf", data + "/master.info", initFile(p)} {
		if _, err := os.Lstat(name); err == nil {
			t.Errorf("%s is there", name)
		}
	}
	if text, err := os.ReadFile(p.OptionFile()); err != nil || strings.Contains(string(text), "/db/") ||
		strings.Contains(string(text), "init_file") {
		t.Errorf("%v\n%s", err, text)
	}
	set := r.pools.sets["tank/dev1/data"]
	if set["recordsize"] != "16384" || set["compression"] != "lz4" || set["canmount"] != "on" ||
		set["bulkhead:layout"] != "" {
		t.Errorf("%v", set)
	}
	if _, err := r.Clone(t.Context(), p); api.CodeOf(err) != api.CodeRefused {
		t.Errorf("a second one of the name: %v", err)
	}
	if err := r.Drop(t.Context(), "dev1"); err != nil {
		t.Fatal(err)
	}
	r.nothing(t)
	if err := r.Drop(t.Context(), "dev1"); err == nil {
		t.Error("one that is not there was dropped")
	}
}

// nothing sees that nothing of a copy is left, and that the origin is as it was.
func (r *rig) nothing(t *testing.T) {
	t.Helper()
	left := []string{}
	for name := range r.pools.sets {
		left = append(left, name)
	}
	slices.Sort(left)
	if strings.Join(left, " ") != "tank tank/my tank/my/data tank/my/log" || len(r.pools.held) != 2 {
		t.Errorf("data sets %q, snapshots %v", left, r.pools.held)
	}
	if entries, err := os.ReadDir(filepath.Join(r.pools.dir, "copies")); err == nil && len(entries) > 0 {
		t.Errorf("%v", entries)
	}
	if r.running != "" || r.group || len(r.Names()) > 0 {
		t.Errorf("server on %q, group %v, records %v", r.running, r.group, r.Names())
	}
}

// Killed at each step, the same call again makes the copy, or drop removes what is there.
func TestKilledAtEveryStep(t *testing.T) {
	seen := map[string]int{}
	for _, verb := range []string{"clone", "refresh", "drop"} {
		for _, then := range []string{"again", "drop"} {
			for steps := 0; ; steps++ {
				r := newRig(t)
				p := mustMake(t, request(r.pools.dir))
				do := func() error { _, err := r.Clone(t.Context(), p); return err }
				again := do
				if verb != "clone" {
					if err := do(); err != nil {
						t.Fatal(err)
					}
				}
				switch verb {
				case "refresh":
					do = func() error { _, err := r.Refresh(t.Context(), "dev1", p); return err }
					again = do
				case "drop":
					do = func() error { return r.Drop(t.Context(), "dev1") }
				}
				at, err := r.killed(steps, do)
				if err != nil {
					t.Fatalf("%s, %d steps: %v", verb, steps, err)
				}
				if at == "" {
					break
				}
				seen[verb]++
				if verb != "drop" && then == "again" {
					if err := again(); err != nil {
						t.Fatalf("%s killed at %q, and again: %v", verb, at, err)
					}
					if text, err := os.ReadFile(filepath.Join(p.DataDir, "shop/orders.ibd")); err != nil ||
						string(text) != "pages" || r.running != p.DataDir {
						t.Errorf("%s killed at %q, and again: %q, %v", verb, at, text, err)
					}
				}
				if err := r.Drop(t.Context(), "dev1"); err != nil {
					t.Fatalf("%s killed at %q, and dropped: %v", verb, at, err)
				}
				r.nothing(t)
			}
		}
	}
	if seen["clone"] < 30 || seen["refresh"] < 40 || seen["drop"] < 16 {
		t.Errorf("steps: %v", seen)
	}
	t.Log(seen)
}

// What fails is taken back, with the end of the server's log; a refresh that fails is left to another try.
func TestFails(t *testing.T) {
	r := newRig(t)
	p := mustMake(t, request(r.pools.dir))
	r.refuses = errors.New("it ended at once")
	if _, err := r.Clone(t.Context(), p); err == nil || !strings.Contains(err.Error(), "it has no room") {
		t.Errorf("%v", err)
	}
	r.nothing(t)
	r.refuses = nil
	if _, err := r.Clone(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	r.refuses = errors.New("it ended at once")
	if _, err := r.Refresh(t.Context(), "dev1", p); err == nil {
		t.Error("it did not fail")
	}
	if _, err := r.Clone(t.Context(), p); err == nil {
		t.Error("clone went on with a refresh")
	}
	r.refuses = nil
	if _, err := r.Refresh(t.Context(), "dev1", p); err != nil {
		t.Fatal(err)
	}
}

// What is busy is tried again, and then it is said who uses it. What depends on a copy keeps it, and its server goes
// on.
func TestDropWaitsAndRefuses(t *testing.T) {
	r := newRig(t)
	p := mustMake(t, request(r.pools.dir))
	if _, err := r.Clone(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	r.pools.held["tank/dev1/data@mine"] = ""
	if err := r.Drop(t.Context(), "dev1"); api.CodeOf(err) != api.CodeRefused || r.running == "" {
		t.Errorf("%v, server on %q", err, r.running)
	}
	r.pools.held["tank/dev1/data@mine"] = "tank/other"
	if _, err := r.Refresh(t.Context(), "dev1", p); api.CodeOf(err) != api.CodeRefused || !strings.Contains(err.Error(),
		"tank/other") {
		t.Errorf("%v", err)
	}
	delete(r.pools.held, "tank/dev1/data@mine")
	r.pools.sets["tank/dev1/data/more"] = map[string]string{}
	if err := r.Drop(t.Context(), "dev1"); api.CodeOf(err) != api.CodeRefused || r.running == "" {
		t.Errorf("%v, server on %q", err, r.running)
	}
	delete(r.pools.sets, "tank/dev1/data/more")
	r.pools.busy, r.Patience = 1000, 300*time.Millisecond
	if err := r.Drop(t.Context(), "dev1"); err == nil || !strings.Contains(err.Error(), "less") {
		t.Errorf("%v", err)
	}
	r.pools.busy, r.Patience = 2, time.Minute
	if err := r.Drop(t.Context(), "dev1"); err != nil {
		t.Fatal(err)
	}
	r.nothing(t)
}

// A name or a directory that somebody else has is left alone.
func TestTaken(t *testing.T) {
	r := newRig(t)
	p := mustMake(t, request(r.pools.dir))
	r.pools.sets["tank/dev1"] = map[string]string{}
	if _, err := r.Clone(t.Context(), p); api.CodeOf(err) != api.CodeRefused {
		t.Errorf("%v", err)
	}
	delete(r.pools.sets, "tank/dev1")
	other := filepath.Join(p.Dir(), "other")
	if err := os.MkdirAll(other, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Clone(t.Context(), p); api.CodeOf(err) != api.CodeRefused {
		t.Errorf("%v", err)
	}
	if err := errors.Join(os.Remove(other), os.Chmod(p.Base, 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Clone(t.Context(), p); api.CodeOf(err) != api.CodeRefused {
		t.Errorf("others may write to its directory: %v", err)
	}
}

// A link or an index that leads to the files of another server is refused, and nothing is left.
func TestLeadsOut(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"link": func(dir string) error {
			return os.Symlink("/other/t.MYD", filepath.Join(dir, "tank,my,data@s/t.MYD"))
		},
		"relative link": func(dir string) error {
			return os.Symlink("../../other/t.MYD", filepath.Join(dir, "tank,my,data@s/shop/t.MYD"))
		},
		"index": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "tank,my,log@s/bin.index"), []byte("/other/bin.000001\n"), 0o600)
		},
		"isl": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "tank,my,data@s/shop/x.isl"), []byte("/other/x.ibd"), 0o600)
		},
	} {
		r := newRig(t)
		if err := spoil(filepath.Join(r.pools.dir, "snapshots")); err != nil {
			t.Fatal(err)
		}
		_, err := r.Clone(t.Context(), mustMake(t, request(r.pools.dir)))
		if err == nil || api.CodeOf(err) != api.CodeRefused || !strings.Contains(err.Error(), "/other/") {
			t.Errorf("%s: %v", name, err)
		}
		r.nothing(t)
	}
}

// A second call may name another snapshot, with other data sets than the first one made, and nothing of those is left.
func TestOtherSnapshotAfterKill(t *testing.T) {
	for steps := range 18 {
		r := newRig(t)
		first := mustMake(t, request(r.pools.dir))
		if at, err := r.killed(steps, func() error { _, err := r.Clone(t.Context(), first); return err }); at == "" {
			t.Fatalf("%d steps: %v", steps, err)
		}
		q := request(r.pools.dir)
		l := &q.Snapshot.Layout
		l.Datasets = l.Datasets[:1]
		l.Settings = map[string]string{"datadir": "/db/data"}
		if err := os.Remove(filepath.Join(r.pools.dir, "snapshots/tank,my,data@s/inside")); err != nil { // to the log
			t.Fatal(err)
		}
		if _, err := r.Clone(t.Context(), mustMake(t, q)); err != nil {
			t.Fatalf("%d steps: %v", steps, err)
		}
		if err := r.Drop(t.Context(), "dev1"); err != nil {
			t.Fatalf("%d steps: %v", steps, err)
		}
		r.nothing(t)
	}
}
