package database

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"bulkhead/internal/bench/process"
)

// postgresql starts PostgreSQL. Its socket lies in a directory that only root and the server's user may enter; over TCP
// nobody is let in. SIGINT is its fast shutdown, which takes its shared memory away too.
var postgresql = &Engine{
	Title: "PostgreSQL",
	Programs: []process.Program{
		{Name: "postgres", Package: "postgresql"}, {Name: "initdb", Package: "postgresql"},
		{Name: "psql", Package: "postgresql-client"},
	},
	user: "postgres", port: 5432, end: syscall.SIGINT,
	Install: func(ctx context.Context, in *Instance) error {
		in.Socket = filepath.Join(in.RunDir, ".s.PGSQL."+strconv.Itoa(in.Port))
		in.Account = Account{User: "postgres", Database: "postgres"}
		if err := in.tool(ctx, in.owner, in.paths["initdb"], "-D", in.DataDir, "-U", "postgres", "--auth-local=trust",
			"--auth-host=reject", "--no-sync"); err != nil {
			return err
		}
		// So that a backup tool may connect as a replica; the same holds for it.
		return nil
	},
	command: func(in *Instance) []string {
		args := []string{
			in.paths["postgres"], "-D", in.DataDir, "-k", in.RunDir, "-p", strconv.Itoa(in.Port), "-c",
			"listen_addresses=127.0.0.1",
			"-c", fmt.Sprintf("shared_buffers=%dMB", max(in.buffer, 16)), "-c", "max_connections=500", "-c",
			"logging_collector=off",
		}
		return append(args, in.Options...)
	},
	greet: func(in *Instance, conn net.Conn) (version string, err error) {
		if err := sslRequest(conn); err != nil {
			return "", err
		}
		return in.versionOf()
	},
}

// sslRequest asks whether the server speaks TLS, which each answers with one letter without logging anybody in; while
// it starts, it does not listen yet or answers with an error.
func sslRequest(conn io.ReadWriter) error {
	if _, err := conn.Write([]byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f}); err != nil {
		return err
	}
	answer := make([]byte, 1)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return fmt.Errorf("read the server's answer: %w", err)
	}
	if answer[0] != 'N' && answer[0] != 'S' {
		return fmt.Errorf("read the server's answer: %q", answer)
	}
	return nil
}

// versionOf reads the version of our own server from its data directory.
func (in *Instance) versionOf() (string, error) {
	text, err := os.ReadFile(filepath.Join(in.DataDir, "PG_VERSION"))
	if err != nil {
		return "", fmt.Errorf("read PostgreSQL's version: %w", err)
	}
	if _, err := os.Stat(filepath.Join(in.DataDir, "postmaster.pid")); err != nil {
		return "", err
	}
	pid, err := os.ReadFile(filepath.Join(in.DataDir, "postmaster.pid"))
	if err != nil {
		return "", fmt.Errorf("read PostgreSQL's state: %w", err)
	}
	// The last line is "ready" once it lets clients in (PostgreSQL 10).
	if !bytes.Contains(pid, []byte("ready")) {
		return "", errors.New("it is not ready yet")
	}
	return strings.TrimSpace(string(text)) + "-PostgreSQL", nil
}
