package blockdev

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/sysroot"

	"pgregory.net/rapid"
)

func TestSplitVolume(t *testing.T) {
	for mapper, want := range map[string][2]string{
		"vg-lv":                  {"vg", "lv"},
		"ubuntu--vg-root":        {"ubuntu-vg", "root"},
		"vg--data-my--sql":       {"vg-data", "my-sql"},
		"vg-db-real":             {"vg", "db-real"},
		"a----b-c":               {"a--b", "c"},
		"none":                   {"", "none"},
		"":                       {"", ""},
		"vg-":                    {"vg", ""},
		"-lv":                    {"", "lv"},
		"vg_foo.4059-lv_foo.405": {"vg_foo.4059", "lv_foo.405"},
	} {
		if group, volume := splitVolume(mapper); group != want[0] || volume != want[1] {
			t.Errorf("%q is %q and %q, want %q", mapper, group, volume, want)
		}
	}
}

func TestSerialPage(t *testing.T) {
	for page, want := range map[string]string{
		"\x00\x80\x00\x14     WD-WMAM9XE78956":      "     WD-WMAM9XE78956",
		"\x00\x80\x00\x1450026B724B09A1FF    ":      "50026B724B09A1FF    ",
		"\x00\x80\x00\x04abcdefgh":                  "abcd",
		"\x00\x80\xff\xffshort":                     "short",
		"\x00\x80\x00":                              "",
		"\x00\x83\x00\x04abcd":                      "",
		"":                                          "",
		"\x00\x80\x00\x00":                          "",
		"no page at all, but long enough to be one": "",
	} {
		if got := serialPage(page); got != want {
			t.Errorf("%q gives %q, want %q", page, got, want)
		}
	}
}

func TestSplitOverlay(t *testing.T) {
	for list, want := range map[string][]string{
		"/a:/b":       {"/a", "/b"},
		`/a\:b:/c\\d`: {"/a:b", `/c\d`},
		"/a::/data":   {"/a", "/data"},
		"":            nil,
		`/end\`:       {`/end\`},
	} {
		if got := splitOverlay(list); !slices.Equal(got, want) {
			t.Errorf("%q gives %q, want %q", list, got, want)
		}
	}
}

func FuzzParseUdev(f *testing.F) {
	f.Add("S:disk/by-id/x\nE:ID_FS_TYPE=zfs_member\nE:ID_FS_LABEL=tank\nI:12\nG:systemd\n")
	f.Add("E:\nS\n:\n")
	f.Fuzz(func(t *testing.T, text string) {
		facts := parseUdev(text)
		for _, link := range facts.links {
			if !strings.Contains(text, "S:"+link) {
				t.Fatalf("%q gives the link %q", text, link)
			}
		}
		for name, value := range facts.properties {
			if !strings.Contains(text, name) || !strings.Contains(text, value) {
				t.Fatalf("%q gives %q=%q", text, name, value)
			}
		}
	})
}

// FuzzDeviceNames gives the parsers of what devices are called whatever a disk or an administrator may have put there.
func FuzzDeviceNames(f *testing.F) {
	f.Add("vg-lv", "LVM-"+strings.Repeat("a", 64)+"-tpool", "\x00\x80\x00\x04abcd", `/a\:b:/c`)
	f.Add("luks-x", "CRYPT-LUKS2-00-x", "", "")
	f.Fuzz(func(t *testing.T, mapper, uuid, page, list string) {
		group, volume := splitVolume(mapper)
		if len(group)+len(volume) > len(mapper) {
			t.Fatalf("%q gives %q and %q", mapper, group, volume)
		}
		if part := volumePart(uuid); part != "" && len(uuid) <= 68 {
			t.Fatalf("%q gives the part %q", uuid, part)
		}
		if format := cryptFormat(uuid); !strings.Contains(uuid, format) {
			t.Fatalf("%q gives the format %q", uuid, format)
		}
		if serial := serialPage(page); !strings.HasSuffix(page, serial) && !strings.Contains(page, serial) {
			t.Fatalf("%q gives the serial number %q", page, serial)
		}
		for _, dir := range splitOverlay(list) {
			if dir == "" {
				t.Fatalf("%q gives an empty directory", list)
			}
		}
	})
}

// Whatever devices and mounts say of each other, the look ends, has no ring in it, and every end says why it is one.
func TestAnyStorageEnds(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"proc", "sys"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		kinds := []DeviceKind{Disk, Partition, Loop, Volume, Crypt, Multipath, Mapper, RAID, Bcache, Stacked, Other}
		number := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("8:%d",
				rapid.IntRange(0, 9).Draw(t, "minor"))
		})
		device := rapid.Custom(func(t *rapid.T) Device {
			d := Device{
				Number: number.Draw(t, "number"), Kind: rapid.SampledFrom(kinds).Draw(t, "kind"),
				Disk:   number.Draw(t, "disk"),
				Slaves: rapid.SliceOfN(number, 0, 4).Draw(t, "slaves"),
				lost:   rapid.SliceOfN(rapid.SampledFrom([]string{"sdx", "sdy"}), 0, 1).Draw(t, "lost"),
				Backing: rapid.SampledFrom([]string{"", "/a/x", "/b/x", "/b/y (deleted)", "relative", "/"}).Draw(t,
					"backing"),
				Mapper: rapid.SampledFrom([]string{"", "vg-lv", "vg-lv_tmeta"}).Draw(t, "mapper"),
			}
			d.Name = "d" + d.Number[2:]
			return d
		})
		devices := rapid.SliceOfNDistinct(device, 0, 8, func(d Device) string { return d.Number }).Draw(t, "devices")
		slices.SortFunc(devices, func(a, b Device) int { return compareNumbers(a.Number, b.Number) })
		var mounts mountinfo.Mounts
		for i, point := range []string{"/", "/a", "/b"} {
			m := mountinfo.Mount{ID: i + 2, Parent: 2, Point: point, Dev: number.Draw(t, "dev"),
				Type: rapid.SampledFrom([]string{"ext4", "btrfs", "overlay", "zfs", "bcachefs"}).Draw(t, "type")}
			if m.Type == "overlay" {
				m.Dev = "0:4" + m.Dev[2:]
			}
			m.Source = rapid.SampledFrom([]string{"/dev/d1", "/dev/d1:/dev/d2", "pool/x", "overlay"}).Draw(t, "source")
			m.Super = rapid.SliceOfN(rapid.SampledFrom([]string{"rw", "upperdir=/a/u", "lowerdir=/b/l:/a",
				"logdev=/dev/d3"}), 0, 3).Draw(t, "super")
			mounts = append(mounts, m)
		}
		s := newStorage(New(sysroot.New(dir)), devices, mounts)
		s.btrfs = []btrfsVolume{{uuid: "u", devices: []string{"d1", "d2"}}}
		var above []*Layer
		var walk func(l *Layer)
		done := map[*Layer]bool{}
		walk = func(l *Layer) {
			if slices.Contains(above, l) {
				t.Fatalf("%s is on itself", l.ID)
			}
			if done[l] {
				return
			}
			done[l] = true
			if len(l.Below) == 0 && l.Trouble == "" && l.Kind != Disk && l.Kind != Other && l.Kind != Filesystem {
				t.Fatalf("%s (%s) ends without a word", l.ID, l.Kind)
			}
			if l.Name == "" && l.Kind != Filesystem && l.Kind != Crypt && l.Kind != Mapper && l.Kind != Multipath &&
				l.Kind != Volume {
				t.Fatalf("%s (%s) has no name", l.ID, l.Kind)
			}
			above = append(above, l)
			for _, b := range l.Below {
				walk(b.Layer)
			}
			above = above[:len(above)-1]
		}
		for _, m := range s.Mounts() {
			l := s.On(m)
			walk(l)
			for _, d := range l.Drives() {
				if d.Kind == Filesystem {
					t.Fatalf("%s ends on the filesystem %s", m.Point, d.ID)
				}
			}
		}
		for _, l := range s.Unused() {
			walk(l)
		}
	})
}
