package blockdev_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/linuxtest"
)

func TestVolumeGroups(t *testing.T) {
	tests := []struct {
		fixture, group string
		volumes, disks []string
	}{
		{"lvm-striped", "vgdata", []string{"vgdata/pgdata"}, []string{"sdb", "sdc", "sdd", "sde"}},
		{"lvm-linear", "vg-data", []string{"vg-data/my-sql", "vg-data/binlog"}, []string{"sdb", "sdc"}},
		{"lvm-linear", "rhel", []string{"rhel/root", "rhel/swap"}, []string{"sda"}},
		{"lvm-thin", "vg", []string{"vg/pool", "vg/mysql1", "vg/mysql2"}, []string{"sdb", "sdc"}},
		{"lvm-cache", "vg", []string{"vg/data"}, []string{"sda"}},
		{"lvm-linear", "none", nil, nil},
		{"multipath-asm", "none", nil, nil},
	}
	for _, test := range tests {
		t.Run(test.fixture+" "+test.group, func(t *testing.T) {
			l, err := storage(t, "storage/"+test.fixture).Volumes(test.group)
			var wrong *blockdev.GroupError
			if test.volumes == nil {
				if !errors.As(err, &wrong) || wrong.Name != test.group {
					t.Fatalf("got %v, %v", l, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var volumes, disks []string
			for _, b := range l.Below {
				volumes = append(volumes, b.Name)
			}
			for _, d := range l.Drives(blockdev.RoleMetadata, blockdev.RoleCache) {
				disks = append(disks, d.Name)
			}
			if !slices.Equal(volumes, test.volumes) || !slices.Equal(disks, test.disks) ||
				l.String() != "the volume group "+test.group {
				t.Errorf("%s: got %q on %q, want %q on %q", l, volumes, disks, test.volumes, test.disks)
			}
		})
	}
}

// asmHeader is the start of a disk of ASM, made after published listings of kfed: never taken from a real one.
func asmHeader(group string, status byte) []byte {
	b := make([]byte, 4096)
	b[0], b[1], b[2], b[3] = 1, 0x82, 1, 1
	copy(b[32:], "ORCLDISK")
	b[32+0x27] = status
	copy(b[32+0x28:], group+"_0000")
	copy(b[32+0x48:], group)
	return b
}

// asmHost is four LUNs over two paths each, two of a group DATA, one of FRA and one that was DATA's.
func asmHost(t *testing.T) string {
	t.Helper()
	dir := linuxtest.Unpack(t, linuxtest.Text(t, "storage/multipath-asm"))
	write := func(name string, data []byte) {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(name, target string) {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, name); err != nil {
			t.Fatal(err)
		}
	}
	write("dev/dm-0", asmHeader("DATA", 3))
	write("dev/dm-1", asmHeader("DATA", 3))
	write("dev/dm-2", asmHeader("FRA", 3))
	write("dev/dm-3", asmHeader("DATA", 4)) // KFDHDR_FORMER
	link("dev/mapper/asm_data01", "../dm-0")
	link("dev/mapper/asm_data02", "../dm-1")
	link("dev/mapper/asm_data03", "../dm-2")
	link("dev/oracleasm/disks/DATA1", "../../dm-0")
	link("dev/oracleasm/disks/DATA2", "../../dm-1")
	link("dev/asm-data-a", "dm-3")
	write("dev/oracleafd/disks/FRA1", []byte("/dev/dm-2\n"))
	write("etc/bulkhead/data",
		[]byte("# asmcmd lsdsk -G DATA --suppressheader\n/dev/mapper/asm_data02\n\n  ORCL:DATA1 # the first\n"))
	write("etc/bulkhead/empty", []byte("# nothing\n"))
	write("etc/notes", []byte("hello\n"))
	return dir
}

func TestASMDiskGroups(t *testing.T) {
	dir := asmHost(t)
	tests := []struct {
		name, group string
		members     blockdev.Members
		want        []string
		says        string // of the error
	}{
		{"by header", "DATA", blockdev.Members{}, []string{"asm_data01", "asm_data02"}, ""},
		{"by header of another", "FRA", blockdev.Members{}, []string{"asm_data03"}, ""},
		{"no such group", "ARCH", blockdev.Members{}, nil,
			"find the devices of the ASM disk group ARCH: no disk names it in its header"},
		{"ASMLib", "DATA", blockdev.Members{Disks: []string{"/dev/oracleasm/disks/DATA*"}},
			[]string{"asm_data01", "asm_data02"}, ""},
		{"ASMLib's label", "DATA", blockdev.Members{Disks: []string{"ORCL:DATA2"}}, []string{"asm_data02"}, ""},
		{"filter driver", "FRA", blockdev.Members{Disks: []string{"AFD:FRA1"}}, []string{"asm_data03"}, ""},
		{"udev's name", "X", blockdev.Members{Disks: []string{"/dev/asm-data-?"}}, []string{"asm_data04"}, ""},
		{"multipath", "DATA", blockdev.Members{Disks: []string{"/dev/mapper/asm_data0[12]", "/dev/dm-1"}},
			[]string{"asm_data01", "asm_data02"}, ""},
		{"a file", "DATA", blockdev.Members{File: "/etc/bulkhead/data"}, []string{"asm_data01", "asm_data02"}, ""},
		{"an empty file", "DATA", blockdev.Members{File: "/etc/bulkhead/empty"}, nil,
			"/etc/bulkhead/empty names no disk"},
		{"no file", "DATA", blockdev.Members{File: "/etc/bulkhead/none"}, nil,
			"read /etc/bulkhead/none: no such file or directory"},
		{"nothing matches", "DATA", blockdev.Members{Disks: []string{"/dev/mapper/data*"}}, nil,
			"no disk matches /dev/mapper/data*"},
		{"no device", "DATA", blockdev.Members{Disks: []string{"/etc/notes"}}, nil, "/etc/notes is no block device"},
		{"not there", "DATA", blockdev.Members{Disks: []string{"/dev/sdzz"}}, nil,
			"look at /dev/sdzz: no such file or directory"},
		{"no path", "DATA", blockdev.Members{Disks: []string{"sdb"}}, nil, `"sdb" is not a path`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s, err := host.New(dir).Block.Storage()
			if err != nil {
				t.Fatal(err)
			}
			l, err := s.ASM(test.group, test.members)
			if test.says != "" {
				if err == nil || !strings.Contains(err.Error(), test.says) {
					t.Errorf("got %v, want %q", err, test.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, b := range l.Below {
				got = append(got, b.Name)
			}
			if !slices.Equal(got, test.want) || l.Trouble != "" {
				t.Errorf("got %q (%s), want %q", got, l.Trouble, test.want)
			}
		})
	}
}

// A disk without a header that can be read does not hide the others, and is named.
func TestASMDiskThatGivesNoHeader(t *testing.T) {
	dir := asmHost(t)
	if err := os.Remove(filepath.Join(dir, "dev/dm-1")); err != nil {
		t.Fatal(err)
	}
	s, err := host.New(dir).Block.Storage()
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.ASM("data", blockdev.Members{})
	if err != nil {
		t.Fatal(err)
	}
	if len(l.Below) != 1 || !strings.Contains(l.Trouble, "dm-1: no such file") {
		t.Errorf("got %d disks, %q", len(l.Below), l.Trouble)
	}
	_, err = s.ASM("ARCH", blockdev.Members{})
	var wrong *blockdev.GroupError
	if !errors.As(err, &wrong) || !slices.Equal(wrong.Known, []string{"DATA", "FRA"}) ||
		!strings.Contains(err.Error(), "dm-1") {
		t.Errorf("got %v", err)
	}
}

func FuzzASMHeader(f *testing.F) {
	f.Add(asmHeader("DATA", 3))
	f.Add([]byte("ORCLDISK"))
	f.Add(asmHeader(strings.Repeat("X", 40), 3)[:200])
	f.Fuzz(func(t *testing.T, data []byte) {
		if name, is := blockdev.ASMGroup(data); is && (name == "" || len(name) > 32) {
			t.Errorf("%q", name)
		}
	})
}
