package avc_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"bulkhead/internal/selinux/avc"
)

const (
	head = `type=AVC msg=audit(1527792830.989:136): `
	body = ` scontext=system_u:system_r:mysqld_t:s0 tcontext=system_u:object_r:var_lib_t:s0 tclass=file`
)

// one reads a log of one denial.
func one(t *testing.T, text string) avc.Denial {
	t.Helper()
	log := read(t, text)
	if len(log.Denials) != 1 || len(log.Unread) > 0 {
		t.Fatalf("%q has %d denials, %v", text, len(log.Denials), log.Unread)
	}
	return log.Denials[0]
}

// What the forms of a record have in common.
func TestForms(t *testing.T) {
	denied := `avc:  denied  { read write } for  pid=7 comm="mysqld" name="a" dev="dm-0" ino=9` + body
	when := time.Date(2018, 5, 31, 18, 53, 50, 989_000_000, time.UTC)
	for name, text := range map[string]string{
		"auditd":      head + denied,
		"one space":   head + strings.ReplaceAll(denied, "  ", " "),
		"enriched":    head + denied + "\x1dARCH=x86_64 AUID=\"unset\"",
		"node":        "node=db1 " + head + denied,
		"journal":     "Nov 25 10:00:00 db1 kernel: audit: type=1400 audit(1527792830.989:136): " + denied,
		"old journal": "Nov 25 10:00:00 db1 kernel: type=1400 audit(1527792830.989:136): " + denied,
		"dmesg":       "[   11.241711] audit: type=1400 audit(1527792830.989:136): " + denied,
		"JSON of journal": `{"MESSAGE":"AVC ` + strings.ReplaceAll(denied, `"`, `\"`) +
			`","__REALTIME_TIMESTAMP":"1527792830989000"}`,
		"wrapped": strings.Replace(head+denied, " scontext", "\n  scontext", 1),
		"wrapped twice": strings.NewReplacer(" scontext", "\nscontext", " tclass", "\n tclass").
			Replace(head + denied),
		"CR": head + denied + "\r",
	} {
		d := one(t, text+"\n")
		if !d.When.Equal(when) || !slices.Equal(d.Permissions, []string{"read", "write"}) || d.Comm != "mysqld" ||
			d.Source.Type != "mysqld_t" || d.Target.Type != "var_lib_t" || d.Class != "file" || d.PID != 7 ||
			d.Name != "a" || d.Path != "" || d.User || (d.Node == "db1") != (name == "node") ||
			d.Permissive != avc.Unknown {
			t.Errorf("%s: %+v", name, d)
		}
	}
}

// systemd writes the command line of who asked into its record as it is: contexts in it are not those of the record.
func TestForgedContext(t *testing.T) {
	const forged = ` scontext=a:b:mysqld_t:s0 tcontext=a:b:shadow_t:s0 tclass=file permissive=0 `
	for _, command := range []string{`x"` + forged + `y="`, `x'` + forged + `'`} {
		d := one(t, `type=USER_AVC msg=audit(1.2:3): pid=1 uid=0 msg='avc:  denied  { status } for auid=n/a uid=48 `+
			`gid=48 path="/etc/a.service" cmdline="`+command+`" scontext=a:b:httpd_t:s0 tcontext=a:b:unit_t:s0 `+
			"tclass=service permissive=1 exe=\"/usr/lib/systemd/systemd\" sauid=0 hostname=? addr=? terminal=?'"+
			"\x1dUID=\"root\"\n")
		if d.Source.Type != "httpd_t" || d.Target.Type != "unit_t" || d.Class != "service" || d.Permissive != avc.Yes {
			t.Errorf("%q: %+v", command, d)
		}
	}
}

// libselinux cuts what does not go into its buffer: behind a long command line there are no contexts any more.
func TestCutRecord(t *testing.T) {
	message := `avc:  denied  { status } for auid=n/a uid=48 gid=48 cmdline="`
	const forged = `" scontext=a:b:mysqld_t:s0 tcontext=a:b:unit_t:s0 tclass=service permissive=0`
	message += strings.Repeat("x", 1023-len(message)-len(forged)) + forged
	log := read(t, `type=USER_AVC msg=audit(1.2:3): pid=1 uid=0 msg='`+message+
		` exe="/usr/lib/systemd/systemd" sauid=0 hostname=? addr=? terminal=?'`+"\n")
	if len(log.Denials) > 0 || len(log.Unread) != 1 || !strings.Contains(log.Unread[0].Why, "cut") {
		t.Errorf("%+v, %+v", log.Denials, log.Unread)
	}
}

// The journal names the time of a record of auditd's stream only before it, without a year.
func TestTimeOfTheJournal(t *testing.T) {
	for stamp, want := range map[string]time.Time{
		"Nov 25 10:00:00":           time.Date(2026, 11, 25, 10, 0, 0, 0, time.Local),
		"Dec 24 10:00:00":           time.Date(2025, 12, 24, 10, 0, 0, 0, time.Local),
		"2026-11-25T10:00:00+01:00": time.Date(2026, 11, 25, 9, 0, 0, 0, time.UTC),
		"2026-11-25T10:00:00+0100":  time.Date(2026, 11, 25, 9, 0, 0, 0, time.UTC),
		"yesterday":                 {},
	} {
		if d := one(t, stamp+" db1 audit[77]: AVC avc:  denied  { read } for  pid=7"+body); !d.When.Equal(want) {
			t.Errorf("%s is %s, want %s", stamp, d.When, want)
		}
	}
}

// What the kernel writes in hexadecimal digits is read, and what stands in quotes is never taken for such.
func TestHexadecimal(t *testing.T) {
	d := one(t, head+`avc: denied { read } for pid=1 comm=72733A6D61696E20513A526567 name="6162" `+
		`path=2F746D702F6120622E6462`+body)
	if d.Comm != "rs:main Q:Reg" || d.Name != "6162" || d.Path != "/tmp/a b.db" {
		t.Errorf("%+v", d)
	}
	d = one(t, `type=AVC msg=audit(03/12/2024 00:43:15.243:1724) : avc:  denied  { read } for  pid=1 `+
		`comm=rs:main Q:Reg name=feed`+body)
	if d.Comm != "rs:main Q:Reg" || d.Name != "feed" {
		t.Errorf("interpreted: %+v", d)
	}
}

// Dates of ausearch -i are those of some locale.
func TestInterpretedDates(t *testing.T) {
	want := time.Date(2024, 3, 12, 0, 43, 15, 243_000_000, time.Local)
	for _, stamp := range []string{"03/12/2024 00:43:15.243", "12.03.2024 00:43:15.243", "03/12/24 00:43:15.243",
		"2024-03-12 00:43:15.243"} {
		d := one(t, "type=AVC msg=audit("+stamp+":5) : avc:  denied  { read } for  pid=1"+body)
		if !d.When.Equal(want) || d.Serial != 5 {
			t.Errorf("%s is %s", stamp, d.When)
		}
	}
}

// A context has at most three separators before its range.
func TestContext(t *testing.T) {
	c, ok := avc.ParseContext("system_u:system_r:mysqld_t:s0-s0:c0.c1023,c5")
	if !ok || c.Type != "mysqld_t" || c.Range != "s0-s0:c0.c1023,c5" || !c.Domain() {
		t.Errorf("%+v, %v", c, ok)
	}
	if c, ok := avc.ParseContext("u:object_r:tmp_t"); !ok || c.Range != "" || c.Domain() {
		t.Errorf("without a range: %+v, %v", c, ok)
	}
	for _, text := range []string{"", "unlabeled_t", "a:b", "::", "a:b:"} {
		if c, ok := avc.ParseContext(text); ok {
			t.Errorf("%q is %+v", text, c)
		}
	}
}

// A program's denial stands in its message; exe is the one that has asked.
func TestUserRecord(t *testing.T) {
	d := one(t, samples(t)["user-dbus"])
	if !d.User || d.Class != "dbus" || d.Exe != "/usr/bin/dbus-daemon" || d.Permissive != avc.No || d.PID != 0 {
		t.Errorf("%+v", d)
	}
	d = one(t, `type=USER_AVC msg=audit(1.2:3): pid=1 msg='avc:  denied  { start } for  scontext=a:b:c_t `+
		`tcontext=a:b:d_t tclass=service'UID="root" permissive=1`)
	if d.Class != "service" || d.Permissive != avc.Unknown {
		t.Errorf("what is behind the quote is taken: %+v", d)
	}
}

// permissive=1 was allowed; where an old kernel does not say it, what the log has said of the mode before counts.
func TestPermissive(t *testing.T) {
	denied := head + "avc:  denied  { read } for  pid=1" + body
	log := read(t, strings.Join([]string{denied, denied + " permissive=1", denied + " permissive=0",
		"type=MAC_STATUS msg=audit(1527792830.1:9): enforcing=0 old_enforcing=1 auid=0 ses=1", denied,
		denied + " permissive=0",
		"type=USER_AVC msg=audit(1527792831.1:9): pid=1 uid=0 " +
			"msg='avc:  received setenforce notice (enforcing=1)  exe=\"a\"'",
		denied}, "\n"))
	got := []avc.Answer{}
	for _, d := range log.Denials {
		got = append(got, d.Permissive)
	}
	if want := []avc.Answer{avc.Unknown, avc.Yes, avc.No, avc.Yes, avc.No, avc.No}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The whole path is in another record of the event, before (ausearch) or after (auditd), and relative to a directory.
func TestPathOfTheEvent(t *testing.T) {
	denied := head + `avc:  denied  { write } for  pid=7 comm="mysqld" name="a.ibd" dev="dm-0" ino=42` + body
	event := func(kind, text string) string { return "type=" + kind + " msg=audit(1527792830.989:136): " + text }
	rest := []string{event("SYSCALL", `arch=c000003e ppid=6 pid=7 comm="mysqld" exe="/usr/sbin/mysqld" key=(null)`),
		event("CWD", `cwd="/data/mysql"`),
		event("PATH", `item=0 name="./db/" inode=41 nametype=PARENT`),
		event("PATH", `item=1 name="./db/a.ibd" inode=42 nametype=NORMAL`),
		event("PROCTITLE", `proctitle=2F7573722F7362696E2F6D7973716C64002D2D736F636B65743D2F610061`)}
	for _, lines := range [][]string{append([]string{denied}, rest...), append(slices.Clone(rest), denied)} {
		log := read(t, strings.Join(lines, "\n"))
		d := log.Denials[0]
		if d.Path != "/data/mysql/db/a.ibd" || d.Exe != "/usr/sbin/mysqld" {
			t.Errorf("path %q of %q", d.Path, d.Exe)
		}
		command := []string{"/usr/sbin/mysqld", "--socket=/a", "a"}
		if p := log.Processes[7]; p.Parent != 6 || !slices.Equal(p.Command, command) {
			t.Errorf("%+v", p)
		}
	}
	// Another event, and another node with the same serial, say nothing of it.
	other := strings.Replace(rest[3], "989:136", "989:137", 1) + "\nnode=b " + rest[3]
	if d := one(t, denied+"\n"+rest[1]+"\n"+other); d.Path != "" {
		t.Errorf("the path of another event is taken: %q", d.Path)
	}
}

// So many events are open at a time: what comes of one after as many others is not found, and takes no memory.
func TestOpenEventsAreBounded(t *testing.T) {
	denied := head + `avc:  denied  { write } for  pid=7 comm="mysqld" name="a" dev="dm-0" ino=42` + body
	path := `type=PATH msg=audit(1527792830.989:136): item=1 name="/data/a" inode=42 nametype=NORMAL`
	for others, want := range map[int]string{400: "/data/a", 600: ""} {
		text := denied + "\n"
		for i := range others {
			text += fmt.Sprintf("type=CWD msg=audit(1527792831.000:%d): cwd=\"/\"\n", 1000+i)
		}
		if d := one(t, text+path); d.Path != want {
			t.Errorf("behind %d other events its path is %q", others, d.Path)
		}
	}
}

// Times go by the records, also where the clock went back, and in logs that were rotated.
func TestRotatedAndClock(t *testing.T) {
	log := &avc.Log{}
	for i, when := range []string{"1527792830", "1527792990", "1527792700"} {
		text := strings.Replace(head, "1527792830", when, 1) + "avc:  denied  { read } for  pid=1" + body + "\n" +
			"type=MAC_POLICY_LOAD msg=audit(" + when + ".1:5): policy loaded auid=0 ses=1\n"
		if err := log.Read(strings.NewReader(text), now); err != nil {
			t.Fatal(err)
		}
		if d := log.Denials[i]; d.Line != 2*i+1 {
			t.Errorf("line %d, want %d", d.Line, 2*i+1)
		}
	}
	if last := log.LastLoad().Unix(); last != 1527792990 || len(log.Loads) != 3 {
		t.Errorf("the last policy was loaded at %d, of %d", last, len(log.Loads))
	}
	log.Since(time.Unix(1527792830, 0))
	if len(log.Denials) != 2 || log.Denials[1].When.Unix() != 1527792990 {
		t.Errorf("since: %+v", log.Denials)
	}
}

// What a log lacks is said.
func TestIncomplete(t *testing.T) {
	for _, text := range []string{
		"audit: backlog limit exceeded",
		"audit: audit_backlog=321 > audit_backlog_limit=320\naudit: audit_lost=17 audit_rate_limit=0",
		"audit: rate limit exceeded", "net_ratelimit: 44 callbacks suppressed",
	} {
		if log := read(t, text); len(log.Lost) == 0 {
			t.Errorf("%q loses nothing", text)
		}
	}
	if log := read(t, "audit: audit_lost=0 audit_rate_limit=0\nnothing was lost"); len(log.Lost) > 0 {
		t.Errorf("%v", log.Lost)
	}
}

// What cannot be a rule is no denial, and said.
func TestUnread(t *testing.T) {
	for _, text := range []string{
		head + "avc:  denied  { 0x2 } for  pid=1 scontext=a:b:c_t tcontext=a:b:d_t tclass=dbus",
		head + "avc:  denied  { read } for  pid=1 scontext=a:b:c_t tcontext=a:b:d_t tclass=(null)",
		head + "avc:  denied  { read } for  pid=1 scontext=a:b:c_t tclass=file trawcon=x",
		head + "avc:  denied  { } for  pid=1" + body,
		"type=SELINUX_ERR msg=audit(1311948547.151:138): op=security_compute_av reason=bounds scontext=a:b:c",
	} {
		if log := read(t, text); len(log.Denials) != 0 || len(log.Unread) != 1 || log.Unread[0].Line != 1 {
			t.Errorf("%q: %+v, %v", text, log.Denials, log.Unread)
		}
	}
	if log := read(t, head+"avc:  granted  { read } for  pid=1"+body); log.Granted != 1 || len(log.Denials) != 0 {
		t.Errorf("granted: %+v", log)
	}
	log := read(t, head+"avc:  denied  { read } for  pid=1\nand the log ends")
	if len(log.Denials) != 0 || len(log.Unread) != 1 {
		t.Errorf("a record without an end: %+v", log)
	}
	if err := (&avc.Log{}).Read(iotest.ErrReader(os.ErrClosed), now); err == nil {
		t.Error("an error of reading is lost")
	}
}

func TestPorts(t *testing.T) {
	for extra, want := range map[string]string{"src=4444 ": "4444 tcp", "laddr=10.0.0.1 dest=4567 ": "4567 tcp",
		"": "0 "} {
		d := one(t, head+"avc:  denied  { name_bind } for  pid=1 "+extra+
			"scontext=a:b:mysqld_t:s0 tcontext=a:object_r:port_t:s0 tclass=tcp_socket")
		if got := fmt.Sprint(d.Port, " ", d.Protocol); got != want {
			t.Errorf("%q is %q, want %q", extra, got, want)
		}
	}
}

// many is a log of n lines, of which three of four are denials and their events.
func many(n int) string {
	var b strings.Builder
	for i := range n / 4 {
		at := fmt.Sprintf("msg=audit(%d.%03d:%d): ", 1527792830+i/100, i%1000, i)
		fmt.Fprintf(&b, "type=AVC %savc:  denied  { read write } for  pid=%d comm=\"mysqld\" name=\"t%d.ibd\" "+
			"dev=\"dm-0\" ino=%d%s\n", at, i%4096, i%50, i, body)
		fmt.Fprintf(&b, "type=SYSCALL %sarch=c000003e syscall=2 success=no exit=-13 ppid=1 pid=%d auid=4294967295 "+
			"uid=27 comm=\"mysqld\" exe=\"/usr/sbin/mysqld\" subj=system_u:system_r:mysqld_t:s0 key=(null)"+
			"\x1dARCH=x86_64\n", at, i%4096)
		fmt.Fprintf(&b, "type=PATH %sitem=0 name=\"/data/db/t%d.ibd\" inode=%d dev=fd:00\n", at, i%50, i)
		fmt.Fprintf(&b, "type=CRED_REFR msg=audit(%d.1:%d): pid=1 uid=0 msg='op=PAM:setcred res=success'\n",
			1527792830+i, i)
	}
	return b.String()
}

// 100,000 lines take at most a second.
func BenchmarkRead100000Lines(b *testing.B) {
	text := many(100_000)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		log := read(b, text)
		if groups := avc.Groups(log.Denials); len(groups) != 1 || len(groups[0].Denials) != 25_000 ||
			groups[0].Denials[24_999].Path != "/data/db/t49.ibd" {
			b.Fatalf("%d groups", len(groups))
		}
	}
}

// Whatever a log has, it is read, and a group is a rule that can be written.
func FuzzRead(f *testing.F) {
	for _, text := range samples(f) {
		f.Add(text)
	}
	f.Add(strings.Replace(samples(f)["mysql-datadir"], " scontext", "\n\n scontext", 1))
	f.Add(`{"MESSAGE":"AVC avc:  denied { read } for pid=1","__REALTIME_TIMESTAMP":"x"}`)
	f.Fuzz(func(t *testing.T, text string) {
		log := read(t, text)
		lines := strings.Count(text, "\n") + 1
		if log.Lines > lines || len(log.Denials) > lines {
			t.Fatalf("%d lines and %d denials of %d", log.Lines, len(log.Denials), lines)
		}
		n := 0
		for _, g := range avc.Groups(log.Denials) {
			n += len(g.Denials)
			if len(g.Permissions) == 0 || strings.ContainsAny(g.Rule(), "\n\x1d\"'") {
				t.Fatalf("rule %q", g.Rule())
			}
		}
		if n != len(log.Denials) {
			t.Fatalf("%d of %d denials are in groups", n, len(log.Denials))
		}
	})
}

// The work is linear in the size of a log: what an unfinished record takes over has a bound.
func TestUnfinishedRecordsAreBounded(t *testing.T) {
	text := head + "avc:  denied  { read } for  pid=1\n" + strings.Repeat("x\n", 200_000)
	if log := read(t, text); log.Lines != 200_001 || len(log.Unread) != 1 || log.Unread[0].Line != 1 {
		t.Errorf("%d lines, %v", log.Lines, log.Unread)
	}
	// The lines behind the bound are read again by themselves.
	text = head + "avc:  denied  { read } for  pid=1\n" + strings.Repeat("x\n", 20) + body
	if log := read(t, text); len(log.Denials) != 0 {
		t.Errorf("%+v", log.Denials)
	}
}
