package host

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// entries returns the texts of all archive entries in testdata whose names end so: seeds for fuzzing.
func entries(f *testing.F, suffix string) [][]byte {
	f.Helper()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		f.Fatalf("no fixtures: %v", err)
	}
	var texts [][]byte
	for _, file := range files {
		archive, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for part := range strings.SplitSeq(string(archive), "\n-- ") {
			if name, text, found := strings.Cut(part, " --\n"); found && strings.HasSuffix(name, suffix) {
				texts = append(texts, []byte(text+"\n"))
			}
		}
	}
	if len(texts) == 0 {
		f.Fatalf("no fixture has a %s", suffix)
	}
	return texts
}

func TestParseMount(t *testing.T) {
	got, err := parseMountInfo([]byte(
		"36 35 98:0 /mnt1\\040a /mnt\\0112 rw,noatime master:1 shared:2 - ext3 /dev/ro\\134ot rw,errors=continue\n" +
			"37 35 0:5 / /x rw - tmpfs  rw\n"))
	want := Mounts{
		{36, 35, "98:0", "/mnt1 a", "/mnt\t2", []string{"rw", "noatime"}, "ext3", `/dev/ro\ot`, []string{"rw", "errors=continue"}},
		{37, 35, "0:5", "/", "/x", []string{"rw"}, "tmpfs", "", []string{"rw"}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, want)
	}
	for _, line := range []string{
		"", "36 35 98:0 / /mnt rw", "a 35 98:0 / /mnt rw - ext3 x rw", "36 b 98:0 / /mnt rw - ext3 x rw", "36 35 98:0 / /mnt rw - ext3 x",
	} {
		if m, err := parseMountInfo([]byte(line + "\n")); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%q gives %+v, %v", line, m, err)
		}
	}
}

func TestUnescape(t *testing.T) {
	for text, want := range map[string]string{
		`a\040b`: "a b", `\134040`: `\040`, `end\04`: `end\04`, `\999`: `\999`, `\777`: `\777`, "plain": "plain", `\043`: "#",
	} {
		if got := unescape(text); got != want {
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

func TestParseControllers(t *testing.T) {
	got, err := parseControllers([]byte("#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t3\t1\t1\nmemory\t0\t1\t0\n"))
	want := []kernelController{{"cpu", 3, true}, {"memory", 0, false}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func TestParseCgroup(t *testing.T) {
	got, err := parseCgroup([]byte("11:cpuacct,cpu:/a:b\n3:name=systemd:/c\n4:cpuset,name=batch:/d\n0::/e f\n"))
	want := map[string]string{"cpu,cpuacct": "/a:b", "name=systemd": "/c", "cpuset": "/d", "unified": "/e f"}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func TestParseStat(t *testing.T) {
	fields := make([]string, 0, 52)
	for i := 3; i <= 52; i++ {
		fields = append(fields, strconv.Itoa(i))
	}
	fields[statState-3], fields[statFlags-3], fields[statPolicy-3] = "R", strconv.Itoa(flagKernelThread|64), "6"
	whole := "77 (a) S 1 (b\n)) " + strings.Join(fields, " ") + "\n"
	s, err := parseStat([]byte(whole))
	s.image = 0
	want := stat{pid: 77, ppid: 4, comm: "a) S 1 (b\n)", state: 'R', kernel: true, threads: 20, start: 22, realtime: true}
	if err != nil || s != want {
		t.Errorf("got %+v, %v, want %+v", s, err, want)
	}
	for n := 3; n <= 22; n++ { // cut off before field n
		if s, err := parseStat([]byte("77 (a) " + strings.Join(fields[:n-3], " "))); err == nil {
			t.Errorf("without field %d: %+v", n, s)
		}
	}
	if _, err := parseStat([]byte("77 (a) " + strings.Join(fields[:20], " "))); err != nil {
		t.Errorf("22 fields, as before kernel 2.6: %v", err)
	}
}

func TestImageTellsExecutionsApart(t *testing.T) {
	stat := func(change int) uint64 {
		fields := make([]string, 50)
		for i := range fields {
			fields[i] = "1"
		}
		fields[0] = "S"
		if change > 0 {
			fields[change-3] = "2"
		}
		s, err := parseStat([]byte("7 (a) " + strings.Join(fields, " ")))
		if err != nil {
			t.Fatal(err)
		}
		return s.image
	}
	same := stat(0)
	for field := 4; field <= 52; field++ {
		differs := slices.Contains([]int{26, 27, 28, 45, 46, 47, 48, 49, 50, 51}, field)
		if (stat(field) != same) != differs {
			t.Errorf("field %d changes the image: %t, want %t", field, !differs, differs)
		}
	}
}

func TestParseArgs(t *testing.T) {
	for text, want := range map[string][]string{
		"":                                     nil,
		"\x00\x00\x00\x00":                     nil,
		"sh\x00":                               {"sh"},
		"sh\x00-c\x00\x00":                     {"sh", "-c", ""}, // an empty argument counts
		"prog\x00\x00":                         {"prog", ""},
		"cut":                                  {"cut"}, // no NUL at all
		"postgres: writer \x00\x00\x00\x00":    {"postgres: writer "},
		"nginx: master process":                {"nginx: master process"},
		"redis-server *:6379\x00":              {"redis-server *:6379"},
		"title\x00\x00\x00\x00\x00":            {"title"},
		"mysqld\x00--port=3306\x00--x=a b\x00": {"mysqld", "--port=3306", "--x=a b"},
	} {
		if got := parseArgs([]byte(text)); !slices.Equal(got, want) {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
	}
}

func TestParseStatus(t *testing.T) {
	s, err := parseStatus([]byte("Name:\tx:y\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nNSpid:\t77\t3\t1\nFuture:\twhatever\nCapEff:\t0000000001000000\n"))
	want := status{uid: 2, gid: 6, mixed: true, groups: []int{9, 10}, namespaces: 3, capEffective: 1 << 24}
	if err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("got %+v, %v, want %+v", s, err, want)
	}
}

func TestParseNames(t *testing.T) {
	n := parseNames([]byte("root:x:0:0::/:\nroot2:x:0:0::/:\n# comment:x:5:\n+::::\nbad:x:y:\nmysql:x:27:27::/:\n"))
	if n.byID[0] != "root" || n.byName["root2"] != 0 || n.byID[27] != "mysql" || len(n.byID) != 2 || len(n.byName) != 3 {
		t.Errorf("got %v, %v", n.byID, n.byName)
	}
}

func TestActiveScheduler(t *testing.T) {
	for text, want := range map[string]string{
		"noop [deadline] cfq": "deadline", "[none] mq-deadline": "none", "none": "none", "": "", "noop deadline": "",
	} {
		if got := activeScheduler(text); got != want {
			t.Errorf("%q gives %q, want %q", text, got, want)
		}
	}
}

func TestCompareNumbers(t *testing.T) {
	got := []string{"259:0", "8:16", "8:2", "11:0", "8:2"}
	slices.SortFunc(got, compareNumbers)
	if want := []string{"8:2", "8:2", "8:16", "11:0", "259:0"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestHidesProcesses(t *testing.T) {
	for option, want := range map[string]bool{
		"rw": false, "hidepid=0": false, "hidepid=off": false, "hidepid=1": true, "hidepid=2": true, "hidepid=invisible": true, "hidepid=ptraceable": true,
	} {
		if got := hidesProcesses([]string{"rw", option}); got != want {
			t.Errorf("%s: %t, want %t", option, got, want)
		}
	}
}

func TestReadAll(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	text := bytes.Repeat([]byte("0123456789"), 1000)
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []int{1, 9999, 10000, 10001} {
		for _, room := range []int{0, 10, 20000} {
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := readAll(int(f.Fd()), make([]byte, 0, room), limit, false)
			f.Close()
			if want := text[:min(limit, len(text))]; err != nil || !bytes.Equal(got, want) {
				t.Errorf("limit %d, room %d: %d bytes, %v, want %d", limit, room, len(got), err, len(want))
			}
		}
	}
}

func TestAppendPIDsStopsAtGarbage(t *testing.T) {
	for _, records := range [][]byte{nil, make([]byte, 5), make([]byte, 64), bytes.Repeat([]byte{255}, 64)} {
		if got := appendPIDs(nil, records); len(got) != 0 {
			t.Errorf("%v gives %v", records, got)
		}
	}
}

func FuzzParseMountInfo(f *testing.F) {
	for _, text := range entries(f, "mountinfo") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		mounts, err := parseMountInfo(text)
		if err != nil || len(mounts) > 100 {
			return
		}
		seen := map[string]bool{}
		for _, h := range hierarchies(mounts, nil) {
			if h.ID == "" || seen[h.ID] {
				t.Fatalf("hierarchy %q is there twice or has no ID", h.ID)
			}
			seen[h.ID] = true
		}
		if m, found := mounts.Of("/sys/fs/cgroup"); found && !within("/sys/fs/cgroup", m.Point) {
			t.Fatalf("/sys/fs/cgroup lies on %q", m.Point)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	for _, text := range entries(f, "/stat") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseStat(text)
		if err == nil && !bytes.Contains(text, []byte("("+s.comm+")")) {
			t.Fatalf("%q has the name %q", text, s.comm)
		}
	})
}

func FuzzParseStatus(f *testing.F) {
	for _, text := range entries(f, "/status") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := parseStatus(text)
		if err == nil && (s.uid < 0 || s.gid < 0 || s.memory.Anon < 0) {
			t.Fatalf("%q gives %+v", text, s)
		}
	})
}

func FuzzParseCgroup(f *testing.F) {
	for _, text := range entries(f, "/cgroup") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		paths, err := parseCgroup(text)
		if err != nil {
			return
		}
		for id, path := range paths {
			if !strings.HasPrefix(path, "/") {
				t.Fatalf("%q gives %s:%q", text, id, path)
			}
		}
	})
}

func FuzzParseArgs(f *testing.F) {
	for _, text := range entries(f, "/cmdline") {
		f.Add(bytes.ReplaceAll(bytes.TrimPrefix(text, []byte(CapturedBytes)), []byte(`\0`), []byte{0}))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		args := parseArgs(text)
		joined := strings.Join(args, "\x00")
		if rest, found := bytes.CutPrefix(text, []byte(joined)); !found || len(bytes.Trim(rest, "\x00")) > 0 {
			t.Fatalf("%q gives %q: something is lost", text, args)
		}
		if masked := maskSecrets(text); bytes.Count(masked, []byte{0}) != bytes.Count(text, []byte{0}) {
			t.Fatalf("%q masked is %q: arguments are lost", text, masked)
		}
	})
}

func FuzzParseControllers(f *testing.F) {
	for _, text := range entries(f, "proc/cgroups") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := parseControllers(text)
		for _, c := range list {
			if err == nil && c.name == "" {
				t.Fatalf("%q gives a controller without a name", text)
			}
		}
	})
}

func FuzzParseMemory(f *testing.F) {
	for _, suffix := range []string{"meminfo", "smaps"} {
		for _, text := range entries(f, suffix) {
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		info, err := parseMemInfo(text)
		for name, n := range info {
			if err == nil && n < 0 {
				t.Fatalf("%q gives %s of %d", text, name, n)
			}
		}
		if _, err := parseSmaps(text); err != nil && errors.Unwrap(err) == nil {
			t.Fatalf("%q: %v does not say why", text, err)
		}
	})
}

func FuzzParseSockets(f *testing.F) {
	for _, suffix := range []string{"net/tcp", "net/tcp6", "net/unix"} {
		for _, text := range entries(f, suffix) {
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		table := map[string]Listener{}
		if parseTCP(text, table) != nil || parseUnix(text, table) != nil {
			return
		}
		for inode, l := range table {
			if inode == "" || l.Network != "tcp" && l.Network != "unix" || l.Port < 0 || l.Port > 65535 {
				t.Fatalf("%q gives %q: %+v", text, inode, l)
			}
		}
	})
}

func FuzzParseVersion(f *testing.F) {
	for _, text := range entries(f, "osrelease") {
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		if v, err := ParseVersion(text); err == nil && (v.Major < 0 || v.Minor < 0 || v.Patch < 0) {
			t.Fatalf("%q gives %+v", text, v)
		}
	})
}
