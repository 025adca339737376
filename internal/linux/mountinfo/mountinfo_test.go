package mountinfo

import (
	"reflect"
	"strings"
	"testing"

	"bulkhead/internal/linux/linuxtest"
)

func TestParseMount(t *testing.T) {
	got, err := Parse([]byte(
		"36 35 98:0 /mnt1\\040a /mnt\\0112 rw,noatime master:1 shared:2 - ext3 /dev/ro\\134ot rw,errors=continue\n" +
			"37 35 0:5 / /x rw - tmpfs  rw\n"))
	want := Mounts{
		{36, 35, "98:0", "/mnt1 a", "/mnt\t2", []string{"rw", "noatime"}, "ext3", `/dev/ro\ot`,
			[]string{"rw", "errors=continue"}},
		{37, 35, "0:5", "/", "/x", []string{"rw"}, "tmpfs", "", []string{"rw"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	for _, line := range []string{
		"", "36 35 98:0 / /mnt rw", "a 35 98:0 / /mnt rw - ext3 x rw", "36 b 98:0 / /mnt rw - ext3 x rw",
		"36 35 98:0 / /mnt rw - ext3 x",
	} {
		if m, err := Parse([]byte(line + "\n")); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%q gives %+v, %v", line, m, err)
		}
	}
}

func TestUnescape(t *testing.T) {
	for text, want := range map[string]string{
		`a\040b`: "a b", `\134040`: `\040`, `end\04`: `end\04`, `\999`: `\999`, `\777`: `\777`, "plain": "plain",
		`\043`: "#",
	} {
		if got := Unescape(text); got != want {
			t.Errorf("%s gives %q, want %q", text, got, want)
		}
	}
}

func TestVisible(t *testing.T) {
	mounts := Mounts{
		{ID: 1, Parent: 0, Point: "/"},
		{ID: 2, Parent: 1, Point: "/cg"},
		{ID: 3, Parent: 2, Point: "/cg/cpu"},
		{ID: 4, Parent: 1, Point: "/cgroup"}, // no prefix of a path by its letters alone
		{ID: 5, Parent: 1, Point: "/a"},
		{ID: 6, Parent: 5, Point: "/a"}, // over 5
		{ID: 7, Parent: 5, Point: "/a/b"},
		{ID: 8, Parent: 6, Point: "/a/c"},
	}
	for id, want := range map[int]bool{1: true, 2: true, 3: true, 4: true, 5: false, 6: true, 7: false, 8: true} {
		if got := mounts.Visible(mounts[id-1]); got != want {
			t.Errorf("mount %d (%s) visible: %t, want %t", id, mounts[id-1].Point, got, want)
		}
	}
	loop := Mounts{{ID: 1, Parent: 2, Point: "/"}, {ID: 2, Parent: 1, Point: "/x"}}
	if !loop.Visible(loop[1]) { // and it ends
		t.Error("a mount whose ancestors go round is hidden")
	}
}

func FuzzParseMountInfo(f *testing.F) {
	for _, text := range linuxtest.Entries(f, "mountinfo") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		mounts, err := Parse(text)
		if err != nil || len(mounts) > 100 {
			return
		}
		if m, found := mounts.Of("/sys/fs/cgroup"); found && !Within("/sys/fs/cgroup", m.Point) {
			t.Fatalf("/sys/fs/cgroup lies on %q", m.Point)
		}
	})
}
