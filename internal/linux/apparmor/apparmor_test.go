package apparmor

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
)

func TestOf(t *testing.T) {
	h := Host{sysroot.New(linuxtest.Unpack(t, `
-- sys/module/apparmor/parameters/enabled --
Y
-- proc/1/stat --
-- proc/1/attr/apparmor/current --
/usr/sbin/mysqld (enforce)
-- proc/1/attr/current --
system_u:system_r:mysqld_t:s0
-- proc/2/attr/current --
my profile (v2) (complain)
-- proc/3/attr/current --
unconfined
-- proc/4/attr/current --
a//&b (enforce)
`))}
	if on, err := h.Enabled(); err != nil || !on {
		t.Errorf("%v, %v", on, err)
	}
	if on, err := (Host{sysroot.New(t.TempDir())}).Enabled(); err != nil || on {
		t.Errorf("not there: %v, %v", on, err)
	}
	for pid, want := range map[int]Confinement{1: {"/usr/sbin/mysqld", "enforce"}, 2: {"my profile (v2)", "complain"},
		3: {"", "unconfined"}, 4: {"a//&b", "enforce"}} {
		if got, err := h.Of(pid); err != nil || got != want {
			t.Errorf("process %d: %+v, %v", pid, got, err)
		}
	}
	if _, err := h.Of(5); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
	if _, err := h.Missing("a", "/b", Read); !errors.Is(err, ErrNotAsked) {
		t.Errorf("a captured host was asked: %v", err)
	}
}

func TestQuestion(t *testing.T) {
	if got := question("/usr/sbin/mysqld", "/data/a"); got != "label\x00/usr/sbin/mysqld\x00\x02/data/a" {
		t.Errorf("%q", got)
	}
	const answer = "allow 0x00018006\ndeny 0x00000002\naudit 0x00000000\nquiet 0x00000000\n"
	if got, err := allowedIn(answer); err != nil || got != bits[Map]|bits[Lock]|bits[Read] {
		t.Errorf("%x, %v", got, err)
	}
	for _, bad := range []string{"", "allow x", "deny 0x1\n"} {
		if got, err := allowedIn(bad); !errors.Is(err, ErrNotAsked) {
			t.Errorf("%q is %x, %v", bad, got, err)
		}
	}
}

// log is written after the forms that security/apparmor/audit.c gives a record, as auditd and as the kernel log it.
const log = `type=AVC msg=audit(1700000000.123:45): apparmor="DENIED" operation="open" profile="/usr/sbin/mysqld" ` +
	`name="/data/a b" pid=12 comm="mysqld" requested_mask="r" denied_mask="r" ouid=110` + "\x1d" + `FSUID="mysql"
[ 12.5] audit: type=1400 audit(1700000001.123:46): apparmor="DENIED" operation="mknod" profile="/usr/sbin/mysqld" ` +
	`name=2F6461746120783D2F6131 pid=12 comm="mysqld" requested_mask="c" denied_mask="c" fsuid=110 ouid=110
[ 12.6] audit: type=1400 audit(1700000002.123:47): apparmor="DENIED" operation="mknod" profile="/usr/sbin/mysqld" ` +
	`name=2F6461746120783D2F6131 pid=13 comm="mysqld" requested_mask="c" denied_mask="c" fsuid=110 ouid=110
[ 12.7] audit: type=1400 audit(1700000003.123:48): apparmor="ALLOWED" operation="capable" profile="redis" pid=14 ` +
	`comm="redis" capability=21 capname="sys_admin"
[ 12.8] audit: type=1400 audit(1700000003.123:49): apparmor="STATUS" operation="profile_load" profile="x" name="x"
type=AVC msg=audit(1.0:1): avc:  denied  { read } for  pid=1 comm="a" scontext=a:b:c tcontext=a:b:c tclass=file
`

func TestReadDenials(t *testing.T) {
	got, cut, err := ReadDenials(strings.NewReader(log))
	want := []Denial{
		{"/usr/sbin/mysqld", "open", "/data/a b", "r", "mysqld", 1, false},
		{"/usr/sbin/mysqld", "mknod", "/data x=/a1", "c", "mysqld", 2, false},
		{"redis", "capable", "", "sys_admin", "redis", 1, true},
	}
	if err != nil || cut || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, %v:\n%+v\nwant\n%+v", cut, err, got, want)
	}
	var long strings.Builder
	for n := range most + 1 {
		fmt.Fprintf(&long, `apparmor="DENIED" operation="open" profile="p" name="/%d" denied_mask="r"`+"\n", n)
	}
	if got, cut, err = ReadDenials(strings.NewReader(long.String())); err != nil || !cut || len(got) != most {
		t.Errorf("%d, %v, %v", len(got), cut, err)
	}
	one := strings.Repeat("x", 2*longest) + "\n" + strings.Split(long.String(), "\n")[0]
	if got, _, err = ReadDenials(strings.NewReader(one)); err != nil || len(got) != 1 {
		t.Errorf("behind a long line: %v, %v", got, err)
	}
}

func FuzzReadDenials(f *testing.F) {
	f.Add(log)
	f.Add(`apparmor="DENIED" profile=2f name="`)
	f.Add(`apparmor="DENIED"=`)
	f.Fuzz(func(t *testing.T, text string) {
		all, _, err := ReadDenials(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, d := range all {
			n += d.Count
		}
		if n > strings.Count(text, "apparmor=") {
			t.Errorf("%d denials in %q", n, text)
		}
	})
}
