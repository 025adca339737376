package zfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// program writes a shell script that stands for zfs(8) or zpool(8).
func program(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// A program that hangs, with a child that holds its output, costs its time and no more. It is counted until it ends.
func TestHungProgram(t *testing.T) {
	hung := Tools{Zpool: program(t, "sleep 5 & sleep 5\n"), Limit: 100 * time.Millisecond, Running: new(atomic.Int32)}
	start := time.Now()
	_, err := hung.Pools(t.Context())
	if !errors.Is(err, ErrTime) || time.Since(start) > 2*time.Second {
		t.Errorf("after %s: %v", time.Since(start), err)
	}
	if n := hung.Running.Load(); n != 1 {
		t.Errorf("%d programs are left behind", n)
	}
	for end := time.Now().Add(time.Minute); hung.Running.Load() != 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it was killed, and counts still")
		}
	}
}

// What a program says goes into the error, and arguments reach it as they are.
func TestRun(t *testing.T) {
	tools := Tools{ZFS: program(t, `[ "$1" = ok ] && { printf '%s|' "$@"; exit; }
echo no such dataset >&2; exit 1
`)}
	out, err := tools.Run(t.Context(), tools.ZFS, "ok", "a b", "$(id)", "'")
	if out != "ok|a b|$(id)|'|" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	want := fmt.Sprintf("run %q: no such dataset: exit status 1", tools.ZFS+" get")
	if _, err := tools.Run(t.Context(), tools.ZFS, "get"); err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

const status = `  pool: tank
 state: DEGRADED
  scan: none requested
config:

	NAME                     STATE     READ WRITE CKSUM
	tank                     DEGRADED     0     0     0
	  mirror-0               DEGRADED     0     0     0
	    /dev/vdb1            ONLINE       0     0     0
	    /dev/vdc1            UNAVAIL      0     0     0  cannot open
	  /mnt/zfs.img           ONLINE       0     0     0
	logs	
	  /dev/shm/slog.img      ONLINE       0     0     0
	cache
	  /dev/vdd1              ONLINE       0     0     0
	spares
	  /dev/vde1              AVAIL   

errors: No known data errors
`

// A pool is read with its vdevs, their roles and their parts.
func TestPools(t *testing.T) {
	tools := Tools{Zpool: program(t, "[ $1 = status ] && { cat <<'END'\n"+status+"END\nexit; }\n"+
		`printf 'tank\tDEGRADED\t1000\t900\t100\t12\t0\nold\tONLINE\t10\t9\t1\t-\t12\n'`)}
	pools, err := tools.Pools(t.Context())
	if err != nil || len(pools) != 2 {
		t.Fatalf("%v, %v", pools, err)
	}
	p := pools[0]
	if p.State != "DEGRADED" || p.Free != 100 || p.Fragmentation != 12 || p.Ashift != 0 ||
		pools[1].Fragmentation != -1 || pools[1].Ashift != 12 {
		t.Errorf("%+v", pools)
	}
	got := ""
	for _, v := range p.Vdevs {
		got += fmt.Sprintf("%s %s %s %v %v %v\n", v.Role, v.Name, v.State, v.Parts, v.Redundant(), v.Files())
	}
	want := `data mirror-0 DEGRADED [/dev/vdb1 /dev/vdc1] true []
data /mnt/zfs.img ONLINE [] false [/mnt/zfs.img]
logs /dev/shm/slog.img ONLINE [] false [/dev/shm/slog.img]
cache /dev/vdd1 ONLINE [] false []
spares /dev/vde1 AVAIL [] false []
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// Properties keep their source, snapshots what they hold, and a newline in a property of a user forges none.
func TestDatasets(t *testing.T) {
	tools := Tools{ZFS: program(t, `printf 'tank/a@s\tused\t5\t-\ntank/a@s\tclones\ttank/x,tank/y\t-\n'
printf 'tank/a@s\tbulkhead:binlog\tb.000002:110\tlocal\n'
printf 'tank/a@s\tnote:x\tone\ntwo\tlocal\ntank/a@s\tused\t9\tlocal\n'`)}
	list, err := tools.Snapshots(t.Context(), "tank/a")
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	s := list[0]
	if s.Used() != 5 || !slices.Equal(s.Clones(), []string{"tank/x", "tank/y"}) || s.Pool() != "tank" ||
		s.Own("bulkhead:")["bulkhead:binlog"] != "b.000002:110" || s.Referenced() != -1 {
		t.Errorf("%+v", s)
	}
}

// One call makes all snapshots with their properties, and a dataset is never destroyed.
func TestChange(t *testing.T) {
	said := filepath.Join(t.TempDir(), "said")
	tools := Tools{ZFS: program(t, `printf '%s|' "$@" >>`+said+"\n")}
	_, asked := tools.SnapshotsWith(t.Context(), []string{"used", "x:a"}, "p/a", "p/b")
	err := errors.Join(asked,
		tools.Snapshot(t.Context(), map[string]string{"x:b": "two words", "x:a": "$(id)"}, "p/a@s", "p/b@s"),
		tools.Set(t.Context(), map[string]string{"x:b": "1", "x:a": "2"}, "p/a@s"), tools.Destroy(t.Context(), "p/a@s"))
	got, _ := os.ReadFile(said)
	want := "get|-H|-p|-o|name,property,value,source|-t|snapshot|-d|1|used,x:a|p/a|p/b|" +
		"snapshot|-o|x:a=$(id)|-o|x:b=two words|p/a@s|p/b@s|set|x:a=2|x:b=1|p/a@s|destroy|p/a@s|"
	if err != nil || string(got) != want {
		t.Errorf("%v\n%s\nwant %s", err, got, want)
	}
	for _, name := range []string{"p", "p/a", ""} {
		if err := tools.Destroy(t.Context(), name); err == nil {
			t.Errorf("%q was destroyed", name)
		}
	}
}

// The kernel's figures are read by name.
func TestArcstats(t *testing.T) {
	s := arcstats("13 1 0x01 123 33456\nname type data\nhits 4 12\nc_max 4 67108864\n")
	if s["hits"] != 12 || s["c_max"] != 67108864 || len(s) != 2 {
		t.Errorf("%v", s)
	}
	if (Cache{Asked: 64, Max: 128}).Ignored() != true || (Cache{Max: 128}).Ignored() {
		t.Error("ignored")
	}
}
