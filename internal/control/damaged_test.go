package control

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/journal"
	"bulkhead/internal/state"
)

// documentNames is every document there is, by file name.
func documentNames() []string {
	names := []string{journal.VersionName(1)}
	for _, d := range state.Table {
		names = append(names, d.Name)
	}
	return names
}

// fill has every document there, those that nothing has written empty.
func (m *machine) fill() {
	m.t.Helper()
	lock, err := m.lock(m.t.Context(), "test", "test")
	m.must(err)
	defer lock.Release()
	for _, d := range state.Table {
		var there json.RawMessage
		found, err := m.Store.Load(d.Name, &there)
		m.must(err)
		if !found {
			m.must(m.Store.Save(d.Name, d.Content(&state.Documents{})))
		}
	}
}

// A document whose bytes have changed, whose content makes no sense, or that is gone blocks neither apply nor
// release: it is put aside, and a release gives all of it back.
func TestDamagedDocumentBlocksNothing(t *testing.T) {
	for _, name := range documentNames() {
		for how, spoil := range map[string]func(m *machine, file string){
			"flipped": func(m *machine, file string) {
				text, err := os.ReadFile(file)
				m.must(err)
				text[len(text)/2] ^= 1
				m.must(os.WriteFile(file, text, 0o600))
			},
			"missing": func(m *machine, file string) { m.must(os.Remove(file)) },
			"of another type": func(m *machine, _ string) {
				lock, err := m.lock(m.t.Context(), "test", "test")
				m.must(err)
				defer lock.Release()
				m.must(m.Store.Save(name, "no such thing"))
			},
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				m := newMachine(t, "252.39")
				m.service("db.service", "/usr/sbin/mysqld", "TasksMax=321", "MemoryMax=2147483648")
				m.start("/usr/bin/backup all")
				before := m.state()
				m.apply(appAndJobs)
				m.reads("applied", dbDir, "memory.max", gib)
				m.fill()
				file := filepath.Join(m.Store.Dir(), name+".json")
				spoil(m, file)
				m.reopened(-1)
				m.apply(appAndJobs)
				m.reads("applied again", dbDir, "memory.max", gib)
				stays := how == "missing" || strings.HasPrefix(name, "policy-")
				if aside, err := filepath.Glob(file + ".damaged-*"); err != nil || (len(aside) == 0) != stays {
					t.Errorf("put aside: %v, %v", aside, err)
				}
				m.fill()
				if _, err := os.Stat(file); err == nil {
					spoil(m, file)
				}
				m.reopened(-1)
				m.release()
				if after := m.state(); after != before {
					t.Errorf("after release:\n%s", differs(after, before))
				}
			})
		}
	}
}
