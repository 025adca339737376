package backuplock

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"bulkhead/internal/dblogin"
)

// rows is an answer: names of columns, and lines of values between blanks.
type rows struct {
	columns string
	lines   [][]string
}

// fake is a server that answers by the beginning of a statement, with nothing to what it does not know.
type fake struct {
	answers map[string]rows
	fails   map[string]error
	hangs   string   // a statement that gets no answer
	said    []string // what it was told
	closed  bool
}

func (f *fake) Connect(context.Context) (driver.Conn, error) { return f, nil }
func (f *fake) Driver() driver.Driver                        { return nil }
func (f *fake) Prepare(string) (driver.Stmt, error)          { return nil, errors.New("not here") }
func (f *fake) Begin() (driver.Tx, error)                    { return nil, errors.New("not here") }

func (f *fake) Close() error {
	f.closed = true
	return nil
}

func (f *fake) told(ctx context.Context, statement string) error {
	f.said = append(f.said, statement)
	if f.hangs != "" && strings.HasPrefix(statement, f.hangs) {
		<-ctx.Done()
		return ctx.Err()
	}
	for begin, err := range f.fails {
		if strings.HasPrefix(statement, begin) {
			return err
		}
	}
	return ctx.Err()
}

func (f *fake) ExecContext(ctx context.Context, statement string, _ []driver.NamedValue) (driver.Result, error) {
	return driver.ResultNoRows, f.told(ctx, statement)
}

func (f *fake) QueryContext(ctx context.Context, query string, _ []driver.NamedValue) (driver.Rows, error) {
	if err := f.told(ctx, query); err != nil {
		return nil, err
	}
	best, answer := -1, rows{}
	for begin, a := range f.answers {
		if strings.HasPrefix(query, begin) && len(begin) > best {
			best, answer = len(begin), a
		}
	}
	return &cursor{rows: answer}, nil
}

type cursor struct {
	rows
	at int
}

func (c *cursor) Columns() []string { return strings.Fields(c.columns) }
func (c *cursor) Close() error      { return nil }

func (c *cursor) Next(into []driver.Value) error {
	if c.at == len(c.lines) {
		return io.EOF
	}
	for i, v := range c.lines[c.at] {
		into[i] = v
	}
	c.at++
	return nil
}

// fakeOf gives a MySQL or MariaDB of a version, with settings "name=value".
func fakeOf(version string, settings ...string) *fake {
	lines := [][]string{{"datadir", "/data/"}}
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		lines = append(lines, []string{name, value})
	}
	return &fake{answers: map[string]rows{
		"SELECT VERSION()":      {"v", [][]string{{version}}},
		"SHOW GLOBAL VARIABLES": {"Variable_name Value", lines},
		"SHOW MASTER STATUS":    {"File Position Executed_Gtid_Set", [][]string{{"b.000002", "345", "u:1-5,\nw:1-2"}}},
		"SHOW BINARY LOG STATUS": {"File Position Executed_Gtid_Set",
			[][]string{{"b.000003", "678", "u:1-9"}}},
		"SELECT @@GLOBAL.gtid_binlog_pos": {"p", [][]string{{"0-1-77"}}},
		"SELECT LOCAL, REPLICATION": {"LOCAL REPLICATION", [][]string{{
			`{"gtid_executed": "u:1-7", "binary_log_file": "b.000004", "binary_log_position": 910}`,
			`{"channels": [{"channel_name": "c", "relay_log_file": "r.000001", "relay_log_position": 4}]}`}}},
	}}
}

// opened is a session on a fake server.
func opened(t *testing.T, f *fake, limits Limits) (*Session, error) {
	t.Helper()
	s := &Session{limits: limits, Settings: map[string]string{}, cancel: func() {}, secret: "sesame"}
	m, err := newMySQL(t.Context(), sql.OpenDB(f), s)
	if err == nil {
		s.server = m
	}
	return s, err
}

var usual = Limits{Wait: 5 * time.Second, Hold: 5 * time.Second}

// Each version gets the lightest lock that keeps its position true, bounded by the server itself, and it is given back.
func TestLockByVersion(t *testing.T) {
	const (
		instance = "LOCK INSTANCE FOR BACKUP"
		tables   = "FLUSH TABLES WITH READ LOCK"
		stages   = "BACKUP STAGE START|BACKUP STAGE FLUSH|BACKUP STAGE BLOCK_DDL|BACKUP STAGE BLOCK_COMMIT|" +
			"BACKUP STAGE END"
		global = tables + "|UNLOCK TABLES"
		both   = instance + "|" + tables + "|UNLOCK TABLES|UNLOCK INSTANCE"
	)
	for _, tt := range []struct {
		name, version string
		settings      []string
		loose         bool // it has a table without transactions
		lock, said    string
		position      string
	}{
		{"5.7", "5.7.44-log", []string{"log_bin=ON"}, false, tables, global, "binlog b.000002:345, GTID u:1-5,w:1-2"},
		{"before the lock", "8.0.4-rc", nil, false, tables, global, "binlog b.000002:345, GTID u:1-5,w:1-2"},
		{"no version", "banana", nil, false, tables, global, "binlog b.000002:345, GTID u:1-5,w:1-2"},
		{"8.0 with GTIDs", "8.0.36", []string{"log_bin=ON", "gtid_mode=ON"}, false, instance,
			instance + "|UNLOCK INSTANCE",
			"at or behind binlog b.000004:910, GTID u:1-7, replica c=relay log r.000001:4"},
		{"8.0 without a binary log", "8.0.36", []string{"log_bin=OFF"}, false, instance, instance + "|UNLOCK INSTANCE",
			"at or behind binlog b.000004:910, GTID u:1-7, replica c=relay log r.000001:4"},
		{"8.0 without GTIDs", "8.0.36", []string{"log_bin=1", "gtid_mode=OFF"}, false, instance + ", " + tables, both,
			"binlog b.000002:345, GTID u:1-5,w:1-2"},
		{"8.4 with MyISAM", "8.4.3", []string{"log_bin=ON", "gtid_mode=ON"}, true, instance + ", " + tables, both,
			"binlog b.000003:678, GTID u:1-9"},
		{"MariaDB", "10.11.6-MariaDB-0+deb12u1-log", nil, true, "BACKUP STAGE BLOCK_COMMIT", stages,
			"binlog b.000002:345, GTID 0-1-77"},
		{"MariaDB for old replicas", "5.5.5-10.6.18-MariaDB", nil, false, "BACKUP STAGE BLOCK_COMMIT", stages,
			"binlog b.000002:345, GTID 0-1-77"},
		{"MariaDB before the stages", "10.3.39-MariaDB", nil, false, tables, global,
			"binlog b.000002:345, GTID 0-1-77"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := fakeOf(tt.version, tt.settings...)
			if tt.loose {
				f.answers["SELECT 1 FROM information_schema.tables"] = rows{"one", [][]string{{"1"}}}
			}
			s, err := opened(t, f, usual)
			if err != nil {
				t.Fatal(err)
			}
			looked := len(f.said)
			p, err := s.Take(t.Context())
			if err != nil || s.Left() < 4*time.Second || s.Left() > usual.Hold {
				t.Fatalf("%v left, %v", s.Left(), err)
			}
			if _, err := s.Release(t.Context()); err != nil || !f.closed {
				t.Errorf("%v, closed %t", err, f.closed)
			}
			var locks []string
			bounded := 0
			for _, statement := range f.said[looked:] {
				switch {
				case statement == "SET SESSION lock_wait_timeout = 5":
					bounded++
				case !strings.HasPrefix(statement, "SHOW") && !strings.HasPrefix(statement, "SELECT"):
					locks = append(locks, statement)
				}
			}
			if got := strings.Join(locks, "|"); s.Lock != tt.lock || got != tt.said {
				t.Errorf("lock %s: %s", s.Lock, got)
			}
			want := len(locks) - strings.Count(tt.said, "UNLOCK") - strings.Count(tt.said, "STAGE END")
			if bounded != want {
				t.Errorf("%d of %d statements that lock have a bound", bounded, want)
			}
			if p.String() != tt.position {
				t.Errorf("at %s", p)
			}
		})
	}
}

// A replica's position is where its source's events were applied up to, whatever the version calls the columns.
func TestPositionOfReplicas(t *testing.T) {
	for version, status := range map[string]struct {
		statement string
		rows
	}{
		"5.7.44": {"SHOW SLAVE STATUS",
			rows{"Master_Host Master_Port Relay_Master_Log_File Exec_Master_Log_Pos Channel_Name",
				[][]string{{"src", "3307", "s.000009", "88", ""}}}},
		"8.4.3": {"SHOW REPLICA STATUS",
			rows{"Source_Host Source_Port Relay_Source_Log_File Exec_Source_Log_Pos Channel_Name",
				[][]string{{"src", "3307", "s.000009", "88", ""}}}},
		"10.11.6-MariaDB": {"SHOW ALL SLAVES STATUS",
			rows{"Connection_name Master_Host Master_Port Relay_Master_Log_File Exec_Master_Log_Pos",
				[][]string{{"", "src", "3307", "s.000009", "88"}, {"two", "other", "3306", "o.000001", "4"}}}},
	} {
		f := fakeOf(version, "log_bin=ON")
		f.answers[status.statement] = status.rows
		s, err := opened(t, f, usual)
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.Take(t.Context())
		s.Close()
		want := []string{"src:3307 s.000009:88", "two=other:3306 o.000001:4"}[:len(status.lines)]
		if err != nil || !slices.Equal(p.Replica, want) {
			t.Errorf("%s: %q, %v", version, p.Replica, err)
		}
	}
}

// Data files elsewhere are named, those below the data directory are not.
func TestFilesOutside(t *testing.T) {
	f := fakeOf("8.0.36")
	f.answers["SELECT FILE_NAME"] = rows{"FILE_NAME", [][]string{{"./ibdata1"}, {"/data/d/t.ibd"}, {"/data2/t.ibd"},
		{""}, {"../up/t.ibd"}}}
	s, err := opened(t, f, usual)
	if err != nil || !slices.Equal(s.Files, []string{"/data2/t.ibd", "/up/t.ibd"}) {
		t.Errorf("%q, %v", s.Files, err)
	}
	s.Close()
}

// A server that says nothing sensible is an error, and not a position.
func TestGarbageFromTheServer(t *testing.T) {
	for _, text := range []string{"", "null]", "[]", `{"binary_log_position": "x"}`} {
		if err := readLogStatus(text, "{}", &Position{}); err == nil {
			t.Errorf("%q was read", text)
		}
		f := fakeOf("8.0.36", "gtid_mode=ON", "log_bin=ON")
		f.answers["SELECT LOCAL, REPLICATION"] = rows{"LOCAL REPLICATION", [][]string{{text, "{}"}}}
		s, err := opened(t, f, usual)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Take(t.Context()); err == nil || !f.closed {
			t.Errorf("%q: %v, closed %t", text, err, f.closed)
		}
	}
}

// Whatever fails after the login ends the session, and with it what is locked; no password is in the error.
func TestFailedLock(t *testing.T) {
	for _, statement := range []string{"SET SESSION", "BACKUP STAGE START", "BACKUP STAGE BLOCK_COMMIT", "SHOW MASTER",
		"SELECT @@GLOBAL.gtid", "SHOW ALL SLAVES"} {
		f := fakeOf("10.11.6-MariaDB")
		f.fails = map[string]error{statement: errors.New("denied for sesame")}
		s, err := opened(t, f, usual)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = s.Take(t.Context()); err == nil || !f.closed || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v, closed %t", statement, err, f.closed)
		}
	}
}

// A server that gives no answer costs the time to wait, and one second.
func TestHungServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakeOf("10.11.6-MariaDB")
		f.hangs = "BACKUP STAGE BLOCK_DDL"
		s, err := opened(t, f, usual)
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		_, err = s.Take(t.Context())
		if took := time.Since(begun); err == nil || took < usual.Wait || took > usual.Wait+2*time.Second || !f.closed {
			t.Errorf("after %v: %v, closed %t", took, err, f.closed)
		}
	})
}

// Steps share the time to wait, and what they waited is not taken off the time to hold.
func TestWaitAndHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakeOf("10.11.6-MariaDB")
		s, err := opened(t, f, Limits{Wait: 5 * time.Second, Hold: 3 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // somebody else's snapshot was waited for
		if _, err := s.Take(t.Context()); err != nil || s.Left() != 3*time.Second {
			t.Fatalf("%v left, %v", s.Left(), err)
		}
		time.Sleep(2 * time.Second)
		if held, err := s.Release(t.Context()); held != 2*time.Second || err != nil {
			t.Errorf("held %v, %v", held, err)
		}
	})
}

// A lock that was held too long is gone, and its holder is told so.
func TestHeldTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakeOf("10.11.6-MariaDB")
		s, err := opened(t, f, usual)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Take(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(usual.Hold + time.Millisecond)
		synctest.Wait()
		if !f.closed {
			t.Error("the session is still there")
		}
		if _, err := s.Release(t.Context()); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
	})
}

// An interruption is one for the caller, too, and nothing stays locked.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := fakeOf("5.7.44")
		f.hangs = "FLUSH TABLES"
		s, err := opened(t, f, usual)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, stop)
		if _, err := s.Take(ctx); !errors.Is(err, context.Canceled) || !f.closed {
			t.Errorf("%v, closed %t", err, f.closed)
		}
	})
}

// Nobody is at the other end, or somebody who says nothing: the login has its time.
func TestOpenUnknown(t *testing.T) {
	l, err := dblogin.Parse("redis://localhost:1/")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), l, usual); err == nil || !strings.Contains(err.Error(), "not built") {
		t.Error(err)
	}
	if l, err = dblogin.Parse("mysql://root@localhost/?socket=/nonexistent/sock"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), l, usual); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Error(err)
	}
}
