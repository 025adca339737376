package confirm

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/linux/audit"
	"bulkhead/internal/state"
	"bulkhead/internal/transaction"
)

// Where nobody takes the records of audit for longer than a start of auditd takes, a watch would see nothing, and says
// so. What may not be asked is no reason.
func TestUnseenDenials(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "var/log/audit/audit.log")
	if err := errors.Join(os.MkdirAll(filepath.Dir(log), 0o755), os.WriteFile(log, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	c, err := transaction.Open(transaction.Options{State: filepath.Join(dir, "state"), Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	g := &guardian{c: c}
	defer g.close()
	status, asked := audit.Status{Enabled: 1, PID: 7}, error(nil)
	g.denials.status = func() (audit.Status, error) { return status, asked }
	w := &state.Watch{Domains: []string{"mysqld_t"}, Since: c.Now()}
	looks := func(ahead time.Duration, want string) {
		t.Helper()
		d := g.denials.blind
		if !d.IsZero() {
			g.denials.blind = d.Add(-ahead)
		}
		why, err := g.look(t.Context(), w)
		if err != nil || want == "" && why != "" || !strings.Contains(why, want) {
			t.Errorf("%+v: %q, want %q: %v", status, why, want, err)
		}
	}
	looks(0, "")
	status.PID = 0
	looks(0, "")
	looks(blindFor/2, "")
	status.PID = 8 // started anew
	looks(blindFor, "")
	status.Enabled = 0
	looks(0, "")
	asked = os.ErrPermission
	looks(blindFor, "")
	asked = nil
	looks(0, "")
	looks(blindFor, "nobody takes the records of audit")
}

// A log that cannot be read for longer than a start of auditd takes is the same: a watch that sees nothing must not go
// on for ever.
func TestUnreadDenials(t *testing.T) {
	dir := t.TempDir()
	c, err := transaction.Open(transaction.Options{State: filepath.Join(dir, "state"), Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	g := &guardian{c: c}
	defer g.close()
	w := &state.Watch{Domains: []string{"mysqld_t"}, Since: c.Now()}
	for range 2 {
		if why, err := g.look(t.Context(), w); why != "" || !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("%q, %v", why, err)
		}
	}
	g.denials.blind = g.denials.blind.Add(-blindFor)
	if why, err := g.look(t.Context(), w); err != nil || !strings.Contains(why, "audit.log\": no such file") {
		t.Errorf("%q, %v", why, err)
	}
}

// What was denied is said until the change is undone, though the log gives it once.
func TestDenialIsKept(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "var/log/audit/audit.log")
	const line = "type=AVC msg=audit(2000.0:7): avc:  denied  { name_bind } for  pid=7 comm=\"mysqld\" src=23306 " +
		"scontext=system_u:system_r:mysqld_t:s0 tcontext=system_u:object_r:unreserved_port_t:s0 tclass=tcp_socket " +
		"permissive=0\n"
	if err := errors.Join(os.MkdirAll(filepath.Dir(log), 0o755), os.WriteFile(log, []byte(line), 0o600)); err != nil {
		t.Fatal(err)
	}
	c, err := transaction.Open(transaction.Options{State: filepath.Join(dir, "state"), Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	g := &guardian{c: c}
	defer g.close()
	w := &state.Watch{Domains: []string{"mysqld_t"}, Since: time.Unix(1999, 0)}
	for range 2 {
		why, err := g.look(t.Context(), w)
		if err != nil || why != `SELinux denied "mysqld" (process 7) in mysqld_t: name_bind on port 23306 (allow `+
			`mysqld_t unreserved_port_t:tcp_socket name_bind;)` {
			t.Errorf("%q, %v", why, err)
		}
	}
}
