package zfs

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
)

// kstat is a host with files below /proc/spl/kstat/zfs.
func kstat(t *testing.T, files map[string]string) *sysroot.FS {
	t.Helper()
	all := map[string]string{}
	for name, text := range files {
		all[filepath.Join(kstats, name)] = text
	}
	return sysroot.New(linuxtest.Files(t, all, 0o644))
}

const objset = `30 1 0x01 7 2160 4712394021 96217393411
name                            type data
dataset_name                    7    tank/mysql my/data
writes                          4    120
nwritten                        4    1966080
reads                           4    7
nread                           4    114688
nunlinks                        4    3
nunlinked                       4    3
`

func TestDatasetsUse(t *testing.T) {
	root := kstat(t, map[string]string{"tank/objset-0x36": objset, "tank/txgs": "", "tank/objset-0x44": "no sense"})
	tools := Tools{ZFS: "zfs", Exec: func(_ string, args ...string) (string, error) {
		got := strings.Join(args, " ")
		if got != "list -H -p -t filesystem -o name,referenced,logicalreferenced,usedbysnapshots" {
			t.Errorf("asked %q", got)
		}
		return "tank\t24576\t12288\t0\ntank/mysql my/data\t1000\t2500\t70\nother\t24576\t12288\t-\n", nil
	}}
	got, err := tools.DatasetsUse(t.Context(), root)
	want := []DatasetUse{{Name: "tank", Physical: 24576, Logical: 12288},
		{Name: "tank/mysql my/data", Physical: 1000, Logical: 2500, Snapshots: 70, Counted: true, Reads: 7, Writes: 120,
			ReadBytes: 114688, WrittenBytes: 1966080},
		{Name: "other", Physical: 24576, Logical: 12288}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v, %v", got, err)
	}
}

// What the programs of OpenZFS 2.1 and 2.3 say: reads and writes alternately, nanoseconds, "-" or 0 for none.
func TestPoolsUse(t *testing.T) {
	root := kstat(t, map[string]string{"tank/txgs": `
txg birth state ndirty nread nwritten reads writes otime qtime wtime stime
101  4700000000  C  65536  0  131072  0  9  5000000000  1200  90000  250000000
102  9700000000  C  65536  0  131072  0  9  5000000000  1200  90000  1500000000
103  14700000000  C  65536  0  131072  0  9  5000000000  1200  90000  30000000
104  19700000000  S  0  0  0  0  0  5000000000  1200  90000  0
105  24700000000  O  0  0  0  0  0  0  0  0  0
`})
	tools := Tools{Zpool: "zpool", Exec: func(_ string, args ...string) (string, error) {
		switch got := strings.Join(args, " "); got {
		case "list -H -p -o name,size,allocated,free,fragmentation":
			return "old\t100\t60\t40\t-\ntank\t1000\t300\t700\t12\n", nil
		case "iostat -H -p -l -y 1 1":
			return "old\t60\t40\t0\t0\t0\t0\t-\t-\t-\t-\t-\t-\t-\t-\t-\t-\n" +
				"tank\t300\t700\t10\t20\t1\t2\t400000\t9000000\t300000\t8000000\t0\t1000\t-\t7000\t-\t-\t-\n", nil
		default:
			return "", fmt.Errorf("asked %q", got)
		}
	}}
	got, err := tools.PoolsUse(t.Context(), root)
	want := []PoolUse{{Name: "old", Size: 100, Used: 60, Free: 40, Fragmentation: -1},
		{Name: "tank", Size: 1000, Used: 300, Free: 700, Fragmentation: 12, Groups: 3, Sync: 30 * time.Millisecond,
			SlowestSync: 1500 * time.Millisecond,
			Reads:       Waits{"total": 400 * time.Microsecond, "disk": 300 * time.Microsecond},
			Writes: Waits{"total": 9 * time.Millisecond, "disk": 8 * time.Millisecond, "syncq": time.Microsecond,
				"asyncq": 7 * time.Microsecond}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
}
