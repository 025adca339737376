package sockets

import (
	"testing"

	"bulkhead/internal/linux/linuxtest"
)

func FuzzParseSockets(f *testing.F) {
	for _, suffix := range []string{"net/tcp", "net/tcp6", "net/unix"} {
		for _, text := range linuxtest.Entries(f, suffix) {
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
