package onhost

import (
	"net"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/engine"
)

// A server that greets is up, and so is one that has too many connections; one that still recovers is not, and who
// says something else is none.
func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name, kind, greeting string
		want                 string
	}{
		{"mysql", engine.MySQL, "\x4a\x00\x00\x00\x0a8.0.39\x00", ""},
		{"too many", engine.MySQL, "\x10\x00\x00\x01\xff\x10\x04Too many", ""},
		{"cut off", engine.MySQL, "\x4a\x00", "EOF"},
		{"ssh", engine.MySQL, "SSH-2.0-x\r\n", "its greeting begins with"},
		{"asks for a password", engine.PostgreSQL, "R\x00\x00\x00\x08\x00\x00\x00\x0a", ""},
		{"no such user", engine.PostgreSQL, "E\x00\x00\x00\x13SFATAL\x00C28000\x00\x00", ""},
		{"starts up", engine.PostgreSQL, "E\x00\x00\x00\x13SFATAL\x00C57P03\x00\x00", "does not take clients yet"},
		{"garbage", engine.PostgreSQL, "E\xff\xff\xff\xff", "its answer begins with"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			if tt.kind == engine.PostgreSQL {
				socket = filepath.Join(filepath.Dir(socket), ".s.PGSQL.5432")
			}
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				if tt.kind == engine.PostgreSQL {
					_, _ = conn.Read(make([]byte, 100))
				}
				_, _ = conn.Write([]byte(tt.greeting))
				_ = conn.Close()
			}()
			err = answers(t.Context(), tt.kind, socket, 5432)
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v", err)
			}
		})
	}
	if err := answers(t.Context(), engine.MySQL, filepath.Join(t.TempDir(), "none"), 0); err == nil {
		t.Error("nobody answers")
	}
	if err := answers(t.Context(), engine.MySQL, "", 0); err == nil {
		t.Error("nothing is known")
	}
}
