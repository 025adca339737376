package procfs

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

	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
)

func TestParseCgroup(t *testing.T) {
	got, err := ParseCgroup([]byte("11:cpuacct,cpu:/a:b\n3:name=systemd:/c\n4:cpuset,name=batch:/d\n0::/e f\n"))
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
	want := stat{pid: 77, ppid: 4, session: 6,
		comm: "a) S 1 (b\n)", state: 'R', kernel: true, threads: 20, start: 22, realtime: true}
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
	s, err := parseStatus([]byte("Name:\tx:y\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 " +
		"\nNSpid:\t77\t3\t1\nFuture:\twhatever\nCapEff:\t0000000001000000\n"))
	want := status{uid: 2, gid: 6, mixed: true, groups: []int{9, 10}, namespaces: 3, CapEffective: 1 << 24}
	if err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("got %+v, %v, want %+v", s, err, want)
	}
}

func TestHidesProcesses(t *testing.T) {
	for option, want := range map[string]bool{
		"rw": false, "hidepid=0": false, "hidepid=off": false, "hidepid=1": true, "hidepid=2": true,
		"hidepid=invisible": true, "hidepid=ptraceable": true,
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

func FuzzParseStat(f *testing.F) {
	for _, text := range linuxtest.Entries(f, "/stat") {
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
	for _, text := range linuxtest.Entries(f, "/status") {
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
	for _, text := range linuxtest.Entries(f, "/cgroup") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		paths, err := ParseCgroup(text)
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
	for _, text := range linuxtest.Entries(f, "/cmdline") {
		f.Add(bytes.ReplaceAll(bytes.TrimPrefix(text, []byte(sysroot.CapturedBytes)), []byte(`\0`), []byte{0}))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		args := parseArgs(text)
		joined := strings.Join(args, "\x00")
		if rest, found := bytes.CutPrefix(text, []byte(joined)); !found || len(bytes.Trim(rest, "\x00")) > 0 {
			t.Fatalf("%q gives %q: something is lost", text, args)
		}
	})
}

func FuzzParseSmaps(f *testing.F) {
	for _, text := range linuxtest.Entries(f, "smaps") {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := parseSmaps(text); err != nil && errors.Unwrap(err) == nil {
			t.Fatalf("%q: %v does not say why", text, err)
		}
	})
}
