package pagemap

import (
	"maps"
	"reflect"
	"strings"
	"testing"
)

func TestParseNumaMaps(t *testing.T) {
	const text = `555555554000 default file=/usr/sbin/mariadbd mapped=1200 mapmax=2 N0=1200 kernelpagesize_kB=4
555557a00000 default heap anon=300 dirty=300 N0=290 N1=10 kernelpagesize_kB=4
7f0000000000 bind:1 anon=4 dirty=4 N1=4 kernelpagesize_kB=2048
7f1000000000 default file=/dev/zero\040(deleted) dirty=100 N0=60 N1=40 kernelpagesize_kB=4
7f2000000000 default
7f3000000000 interleave:0-1 file=/SYSV00000000\040(deleted) huge dirty=2 N0=1 N1=1 kernelpagesize_kB=2048
7ffc00000000 default stack anon=3 dirty=3 N0=3 kernelpagesize_kB=4
7ffd00000000 default file=/usr/lib/x86_64-linux-gnu/libc.so.6 anon=2 dirty=2 mapped=300 N0=1 N1=299 kernelpagesize_kB=4
`
	areas, err := parseNumaMaps([]byte(text))
	got, want := byNode(areas), map[int]int64{0: (290+60+3)*4<<10 + 2048<<10, 1: (10+40)*4<<10 + 5*2048<<10}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	for text, want := range map[string]string{
		"7f00 default anon=1 N0=x kernelpagesize_kB=4":                    `line 1: "N0=x"`,
		"7f00 default anon=1 N0=1 kernelpagesize_kB=4\n7f01 default Nx=1": `line 2: "Nx=1"`,
		"7f00 default anon=1 N0=-1":                                       `"N0=-1"`,
		"7f00":                                                            "no address and policy",
	} {
		if _, err := parseNumaMaps([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
	if got, err := parseNumaMaps(nil); err != nil || len(got) != 0 { // a zombie's, a kernel thread's
		t.Errorf("%v, %v", got, err)
	}
}

// Each line counts pages of its own size: a script that takes all of them for 4 KiB finds a five-hundredth of what
// lies in huge pages, and one that sums kernelpagesize_kB too finds more than there is.
func TestAreasInTheirOwnPages(t *testing.T) {
	areas, err := parseNumaMaps([]byte("7f00 prefer (many):0-1 file=/anon_hugepage\\040(deleted) huge dirty=512 " +
		"N0=256 N1=256 kernelpagesize_kB=2048\n" +
		"7f01 interleave:0-1 heap anon=10 dirty=8 active=3 N1=10 kernelpagesize_kB=4\n"))
	if err != nil || len(areas) != 2 {
		t.Fatalf("%+v, %v", areas, err)
	}
	want := []Area{
		{Start: 0x7f00, Policy: "prefer (many):0-1", File: `/anon_hugepage\040(deleted)`, PageSize: 2 << 20,
			Nodes: map[int]int64{0: 512 << 20, 1: 512 << 20}, Dirty: 1 << 30, Active: 1 << 30, Mapped: 1 << 30},
		{Start: 0x7f01, Policy: "interleave:0-1", PageSize: 4 << 10, Nodes: map[int]int64{1: 40 << 10}, Anon: 40 << 10,
			Dirty: 32 << 10, Active: 12 << 10, Mapped: 40 << 10},
	}
	if !reflect.DeepEqual(areas, want) {
		t.Errorf("%+v, want %+v", areas, want)
	}
}

// A policy has its flags behind an equals sign, as the fields of a line have their values, and may be of two words
// (mpol_to_str in mm/mempolicy.c).
func TestPolicies(t *testing.T) {
	for _, policy := range []string{"default", "local", "bind=static:0", "interleave=relative:0-1", "prefer=static:1",
		"bind=balancing:0", "bind=balancing|static:0-1", "prefer (many)=static:0-1", "weighted interleave:0-1",
		"weighted interleave=static:0-1"} {
		areas, err := parseNumaMaps([]byte("7f00 " + policy + " anon=1 dirty=1 N0=1 kernelpagesize_kB=4\n"))
		if err != nil || len(areas) != 1 || areas[0].Policy != policy || areas[0].Anon != 4<<10 {
			t.Errorf("%s: %+v, %v", policy, areas, err)
		}
	}
}

// What is written below each head belongs to that mapping.
func TestParseSmaps(t *testing.T) {
	const text = `7f2a00000000-7f2a40000000 rw-s 00000000 00:0f 4711                       /anon_hugepage (deleted)
Size:            1048576 kB
KernelPageSize:     2048 kB
Rss:                   0 kB
Pss:                   0 kB
Shared_Hugetlb:   204800 kB
Private_Hugetlb:    2048 kB
VmFlags: rd wr sh mr mw me ms de ht
55d0c0e00000-55d0c0e42000 rw-p 00000000 00:00 0                          [heap]
Size:                264 kB
KernelPageSize:        4 kB
Rss:                 200 kB
Pss:                 150 kB
Anonymous:           200 kB
AnonHugePages:         0 kB
Swap:                 64 kB
SwapPss:              32 kB
THPeligible:           0
7f2b00000000-7f2b10000000 rw-s 00000000 00:01 32769                      /SYSV00000000 (deleted)
Size:             262144 kB
Shared_Hugetlb:        0 kB
Swap:             204800 kB
SwapPss:               0 kB
`
	got, err := parseSmaps([]byte(text))
	want := []Mapping{
		{Start: 0x7f2a00000000, Object: "00:0f:4711", File: "/anon_hugepage (deleted)", Shared: true, Size: 1 << 30,
			PageSize: 2 << 20, Pool: 202 << 20},
		{Start: 0x55d0c0e00000, File: "[heap]", Size: 264 << 10, PageSize: 4 << 10, Resident: 200 << 10,
			Proportional: 150 << 10, Anonymous: 200 << 10, Swap: 32 << 10},
		{Start: 0x7f2b00000000, Object: "00:01:32769", File: "/SYSV00000000 (deleted)", Shared: true, Size: 256 << 20,
			Swap: 200 << 20},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for i, is := range []bool{true, true} {
		if got[i].IsMemory() != is {
			t.Errorf("%q: IsMemory is %v", got[i].File, !is)
		}
	}
	for _, bad := range []string{"Rss: 4 kB\n", "7f00-7f01 rw\nSize: x kB\n", "zz-1 rw-p 0 00:00 0\n",
		"7f00-7f01 rw-p 0 00:00 0\nRss: many kB\n"} {
		if got, err := parseSmaps([]byte(bad)); err == nil {
			t.Errorf("%q was read: %+v", bad, got)
		}
	}
}
