package sockets

import (
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"bulkhead/internal/linux/sysroot"
)

// A connection is found from the end that made it, over TCP and over a Unix socket; one without its other
// end on this host is not.
func TestConnections(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	path := filepath.Join(t.TempDir(), "server.sock")
	local, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	for _, l := range []net.Listener{tcp, local} {
		go func() {
			for {
				if c, err := l.Accept(); err == nil {
					defer c.Close()
				} else {
					return
				}
			}
		}()
		c, err := net.Dial(l.Addr().Network(), l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	found, err := New(sysroot.New("/")).Connections([]int{os.Getpid(), 1 << 22})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 {
		t.Errorf("found %v", found)
	}
	port := tcp.Addr().(*net.TCPAddr).Port
	if l := (Listener{"tcp", tcp.Addr().String(), port}); !slices.Contains(found[os.Getpid()], l) {
		t.Errorf("%v is not among %v", l, found)
	}
	if _, err := askUnixSockets(); err != nil {
		t.Logf("this kernel has no unix_diag: %v", err)
		return
	}
	if l := (Listener{"unix", path, 0}); !slices.Contains(found[os.Getpid()], l) {
		t.Errorf("%v is not among %v", l, found)
	}
}

func TestParseConnections(t *testing.T) {
	const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(local, remote, state string, inode int) string {
		return "   0: " + local + " " + remote + " " + state +
			" 00000000:00000000 00:00000000 00000000  1000        0 " + strconv.Itoa(inode) + " 1\n"
	}
	all, err := parseConnections([]byte(heading +
		line("0100007F:C350", "0100007F:0CEA", "01", 10) +
		line("0100007F:0CEA", "00000000:0000", "0A", 11) +
		line("0000000000000000FFFF00000100007F:0CEA", "0000000000000000FFFF00000100007F:C350", "01", 12)))
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	if all[0].remote != all[1].local || all[0].local != all[1].remote || all[0].remote.String() != "127.0.0.1:3306" {
		t.Errorf("the two ends of one connection are %v", all)
	}
	for _, bad := range []string{"x\n", line("0100007F", "0100007F:0CEA", "01", 1),
		line("0100007F:0CEA", "zz:1", "01", 1)} {
		if _, err := parseConnections([]byte(heading + bad)); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func FuzzParseDiag(f *testing.F) {
	message := make([]byte, netlinkHeader+diagMsgSize+8+12)
	binary.NativeEndian.PutUint32(message, uint32(len(message)))
	binary.NativeEndian.PutUint16(message[4:], diagByFamily)
	binary.NativeEndian.PutUint32(message[netlinkHeader+4:], 7)
	attributes := message[netlinkHeader+diagMsgSize:]
	binary.NativeEndian.PutUint16(attributes, 8)
	binary.NativeEndian.PutUint16(attributes[2:], diagPeer)
	binary.NativeEndian.PutUint32(attributes[4:], 7)
	binary.NativeEndian.PutUint16(attributes[8:], 12)
	binary.NativeEndian.PutUint16(attributes[10:], diagName)
	copy(attributes[12:], "/a.sock\x00")
	if got := parseUnixDiag(message); len(got) != 1 || got["7"] != "/a.sock" {
		f.Fatalf("got %v", got)
	}
	f.Add(message)
	f.Add([]byte{})
	tcp := make([]byte, netlinkHeader+inetMsgSize+12)
	binary.NativeEndian.PutUint32(tcp, uint32(len(tcp)))
	binary.NativeEndian.PutUint16(tcp[4:], diagByFamily)
	tcp[netlinkHeader+inetInode] = 7
	binary.NativeEndian.PutUint16(tcp[netlinkHeader+inetMsgSize:], 12)
	binary.NativeEndian.PutUint16(tcp[netlinkHeader+inetMsgSize+2:], inetCgroupID)
	tcp[len(tcp)-8] = 9
	if got, err := parseTCPDiag(tcp, nil); err != nil || len(got) != 1 || got[0].Inode != 7 || got[0].Cgroup&0xff != 9 {
		f.Fatalf("got %+v, %v", got, err)
	}
	f.Add(tcp)
	f.Fuzz(func(t *testing.T, text []byte) {
		if all, err := parseTCPDiag(text, nil); err == nil {
			for _, s := range all {
				if s.Inode == 0 {
					t.Errorf("nobody holds %+v", s)
				}
			}
		}
		for inode, name := range parseUnixDiag(text) {
			if inode == "" || name == "" {
				t.Errorf("%q %q", inode, name)
			}
		}
	})
}
