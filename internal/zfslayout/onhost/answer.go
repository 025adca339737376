package onhost

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/engine"
)

// answers asks a server over its socket, or else its port, whether it is ready for clients. It logs nobody in.
func answers(ctx context.Context, kind, socket string, port int) error {
	network, address := "unix", socket
	switch {
	case kind == engine.PostgreSQL && socket != "" && !strings.Contains(filepath.Base(socket), ".s.PGSQL."):
		address = filepath.Join(socket, ".s.PGSQL."+strconv.Itoa(port))
	case socket == "" && port != 0:
		network, address = "tcp", net.JoinHostPort("localhost", strconv.Itoa(port))
	case socket == "":
		return errors.New("no socket and no port of it is known")
	}
	var d net.Dialer
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if kind == engine.PostgreSQL {
		err = postgresAnswers(conn)
	} else {
		err = mysqlAnswers(conn)
	}
	if err != nil {
		return fmt.Errorf("ask the server at %s: %w", address, err)
	}
	return nil
}

// mysqlAnswers reads the greeting: a packet of a length in three bytes, a number, and the version of the protocol, 10,
// or an error, 255 (Protocol::Handshake of MySQL's documentation). One with an error, such as too many connections, is
// up.
func mysqlAnswers(r io.Reader) error {
	head := make([]byte, 5)
	if _, err := io.ReadFull(r, head); err != nil {
		return err
	}
	if head[4] != 10 && head[4] != 255 {
		return fmt.Errorf("its greeting begins with % x", head)
	}
	return nil
}

// postgresAnswers begins a session that is never logged in, and reads the first message: a question for a password, or
// an error. 57P03 says that the server does not take clients yet (PostgreSQL's manual, 55.2.1 and appendix A).
func postgresAnswers(rw io.ReadWriter) error {
	body := "user\x00bulkhead\x00\x00"
	message := binary.BigEndian.AppendUint32(nil, uint32(8+len(body))) //nolint:gosec // small
	message = binary.BigEndian.AppendUint32(message, 3<<16)
	if _, err := rw.Write(append(message, body...)); err != nil {
		return err
	}
	head := make([]byte, 5)
	if _, err := io.ReadFull(rw, head); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[1:])
	switch {
	case head[0] == 'R' || head[0] == 'v':
		return nil
	case head[0] != 'E' || n < 4 || n > 64<<10:
		return fmt.Errorf("its answer begins with % x", head)
	}
	text := make([]byte, n-4)
	if _, err := io.ReadFull(rw, text); err != nil {
		return err
	}
	if strings.Contains(string(text), "C57P03\x00") {
		return errors.New("it does not take clients yet")
	}
	return nil
}
