package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/tunable/ownfile"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
)

const (
	myFile = "etc/mysql/conf.d/zz-bulkhead.cnf"
	pgFile = "etc/postgresql/15/main/conf.d/zz-bulkhead.conf"
)

var (
	syncBinlog  = state.Tuned{Rule: "OPS-23", Name: "option /" + myFile + "/sync_binlog", Value: "1"}
	flushLog    = state.Tuned{Rule: "OPS-22", Name: "option /" + myFile + "/innodb_flush_log_at_trx_commit", Value: "1"}
	fsyncOn     = state.Tuned{Rule: "OPS-20", Name: "option /" + pgFile + "/fsync", Value: "on"}
	untunedDBs  = "|"
	tunedDBs    = "[mysqld]; innodb_flush_log_at_trx_commit = 1; sync_binlog = 1|fsync = on"
	optionTunes = []state.Tuned{syncBinlog, flushLog, fsyncOn}
)

// optionMachine is a machine with a PostgreSQL, and directories that a MySQL and it read.
func optionMachine(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t, "252.39")
	m.put("etc/mysql/conf.d/mysqld.cnf", "[mysqld]\nsync_binlog = 0\n")
	m.put("etc/postgresql/15/main/conf.d/10.conf", "fsync = off\n")
	m.put("proc/4711/cmdline", "/usr/lib/postgresql/15/bin/postgres\x00-c\x00"+
		"config_file=/etc/postgresql/15/main/postgresql.conf\x00")
	m.Reread = func(pid int) error {
		text, err := os.ReadFile(filepath.Join(m.root, "told"))
		if err == nil || os.IsNotExist(err) {
			m.put("told", string(text)+"x")
		}
		return nil
	}
	return m
}

// options are what bulkhead's option files say.
func (m *machine) options() string {
	m.t.Helper()
	var held []string
	for _, file := range []string{myFile, pgFile} {
		text, err := os.ReadFile(filepath.Join(m.root, file))
		if err != nil && !os.IsNotExist(err) {
			m.t.Fatal(err)
		}
		body, _ := ownfile.Body(string(text))
		held = append(held, strings.ReplaceAll(strings.TrimSpace(body), "\n", "; "))
	}
	return strings.Join(held, "|")
}

func (m *machine) optionsAs(when, want string) {
	m.t.Helper()
	if got := m.options(); got != want {
		m.t.Errorf("%s: it is %q, want %q", when, got, want)
	}
}

// Settings of engines are in files of bulkhead's own, which PostgreSQL is told to read again once for each change, and
// go again with them. A file that somebody edited is put right.
func TestTuneOption(t *testing.T) {
	m := optionMachine(t)
	told := func() int {
		text, _ := os.ReadFile(filepath.Join(m.root, "told"))
		return len(text)
	}
	reply := m.tune(optionTunes...)
	m.optionsAs("tuned", tunedDBs)
	if text := shown(reply); !strings.Contains(text, "SET GLOBAL sync_binlog = 1") ||
		!strings.Contains(text, "PostgreSQL reads its files again") {
		t.Errorf("it says\n%s", text)
	}
	if n := told(); n != 1 {
		t.Errorf("PostgreSQL was told %d times", n)
	}
	if reply := m.tune(optionTunes...); len(reply.Plan.Steps) > 0 || told() != 1 {
		t.Errorf("once more: %+v", reply.Plan.Steps)
	}
	m.put("etc/mysql/conf.d/zzz.cnf", "[mysqld]\nsync_binlog = 0\n")
	kept, err := inspect.Tuning(t.Context(), m.Reconciler.Controller)
	m.must(err)
	named := 0
	for _, k := range kept {
		if k.Holds != k.Wanted {
			t.Errorf("status: %+v", k)
		}
		if k.Overruled == "line 2 of /etc/mysql/conf.d/zzz.cnf sets 0" {
			named++
		}
	}
	if len(kept) != 3 || named != 1 {
		t.Errorf("status: %+v", kept)
	}
	m.put(pgFile, "fsync = off # for the night\n")
	_, err = m.full()
	m.must(err)
	m.optionsAs("put right", tunedDBs)
	if text, err := os.ReadFile(filepath.Join(m.root, pgFile+ownfile.Edited)); err != nil ||
		!strings.Contains(string(text), "for the night") {
		t.Errorf("what somebody edited: %q, %v", text, err)
	}
	m.release()
	m.optionsAs("released", untunedDBs)
}

// A file that somebody else wrote, with two settings of ours in its place: one of them goes alone, and stays away; with
// the other one the file comes back as it was, its mode too. The same by one release.
func TestTuneOptionForeign(t *testing.T) {
	const theirs = "[mysqld]\nsync_binlog = 7 # f\xfcr die Nacht\n" // no UTF-8, which the journal is in
	for _, one := range []bool{true, false} {
		m := optionMachine(t)
		at := filepath.Join(m.root, myFile)
		m.must(os.WriteFile(at, []byte(theirs), 0o640)) //nolint:gosec // as somebody had it
		m.must(os.Chmod(at, 0o640))
		m.tune(flushLog)
		m.tune(syncBinlog, flushLog)
		m.optionsAs("tuned", "[mysqld]; innodb_flush_log_at_trx_commit = 1; sync_binlog = 1|")
		if one {
			back := func(rule string) {
				_, err := m.do(api.Request{Verb: "tune rollback", Rules: []string{rule}})
				m.must(err)
			}
			back("OPS-22")
			m.optionsAs("one taken back", "[mysqld]; sync_binlog = 1|")
			if reply := m.tune(syncBinlog); len(reply.Plan.Steps) > 0 {
				t.Errorf("it is put right for ever: %+v", reply.Plan.Steps)
			}
			back("OPS-23")
		} else {
			m.release()
		}
		text, err := os.ReadFile(at)
		info, statErr := os.Stat(at)
		if err != nil || statErr != nil || string(text) != theirs || info.Mode() != 0o640 {
			t.Errorf("at the end, one by one %t: %q, %v, %v", one, text, err, statErr)
		} else if _, err := os.Stat(at + ownfile.Edited); !os.IsNotExist(err) {
			t.Errorf("a copy is left: %v", err)
		}
	}
}

// Killed after any step such a file is as it was, with its mode, or kept beside ours.
func TestTuneOptionForeignKilled(t *testing.T) {
	const theirs = "[mysqld]\nsync_binlog = 7 # f\xfcr die Nacht\n"
	tuned := "644: [mysqld]\ninnodb_flush_log_at_trx_commit = 1\nsync_binlog = 1\n; 640: " + theirs
	tuneKilled(t, tuneTrial{
		machine: func(t *testing.T) *machine {
			t.Helper()
			m := optionMachine(t)
			m.put(myFile, theirs)
			m.must(os.Chmod(filepath.Join(m.root, myFile), 0o640))
			return m
		},
		settings: []state.Tuned{syncBinlog, flushLog}, untuned: "640: " + theirs, tuned: tuned, steps: 2,
		step: func(*machine, plan.Step) {},
		held: func(m *machine) string {
			var held []string
			for _, file := range []string{myFile, myFile + ownfile.Edited, myFile + ownfile.Edited + ".2"} {
				at := filepath.Join(m.root, file)
				text, err := os.ReadFile(at)
				if os.IsNotExist(err) {
					continue
				}
				info, statErr := os.Stat(at)
				m.must(errors.Join(err, statErr))
				body, ours := ownfile.Body(string(text))
				if !ours {
					body = string(text)
				}
				held = append(held, fmt.Sprintf("%o: %s", info.Mode().Perm(), body))
			}
			return strings.Join(held, "; ")
		},
		boot: func(m *machine) {
			m.put("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
			m.reopened(-1)
		},
	})
}

// Killed after any step they are as they were, over a boot too.
func TestTuneOptionKilled(t *testing.T) {
	tuneKilled(t, tuneTrial{
		machine: optionMachine, settings: optionTunes, untuned: untunedDBs, tuned: tunedDBs, steps: 3,
		step: func(*machine, plan.Step) {}, held: (*machine).options,
		boot: func(m *machine) {
			m.put("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
			m.reopened(-1)
		},
	})
}

// The policy has them, too; a directory that is not there is said, and another value refused.
func TestTuneOptionByPolicy(t *testing.T) {
	m := optionMachine(t)
	reply := m.apply("host: {tune: {option /" + myFile + ": {sync_binlog: 1, innodb_flush_log_at_trx_commit: 1}, " +
		"option /" + pgFile + ": {fsync: on}, option /none/zz-bulkhead.cnf: {sync_binlog: 1}}}\n")
	m.optionsAs("by the policy", tunedDBs)
	if text := shown(reply); !strings.Contains(text, "there is no directory for /none/zz-bulkhead.cnf") {
		t.Errorf("it says\n%s", text)
	}
	if slices.ContainsFunc(reply.Plan.Steps, func(s plan.Step) bool { return strings.HasPrefix(s.Addr, "/none") }) {
		t.Errorf("steps: %+v", reply.Plan.Steps)
	}
	m.release()
	m.optionsAs("released", untunedDBs)
}
