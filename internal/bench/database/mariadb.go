package database

import (
	"bytes"
	"context"
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

// MariaDB starts MariaDB: no configuration file of the host, direct IO. Only root may log in, over the socket, by being
// root.
var MariaDB = &Engine{
	Title: "MariaDB",
	Programs: []process.Program{
		{Name: "mariadbd", Package: "mariadb-server", Older: "mysqld"},
		{Name: "mariadb-install-db", Package: "mariadb-server", Older: "mysql_install_db"},
	},
	user: "mysql", port: 3306, end: syscall.SIGTERM,
	Install: func(ctx context.Context, in *Instance) error {
		in.Socket = filepath.Join(in.RunDir, "mysqld.sock")
		if err := in.writeInit(); err != nil {
			return err
		}
		return in.tool(ctx, nil, in.paths["mariadb-install-db"], "--no-defaults", "--user=mysql",
			"--datadir="+in.DataDir,
			"--auth-root-authentication-method=socket", "--auth-root-socket-user=root",
			"--skip-test-db", "--skip-name-resolve", "--force")
	},
	command: func(in *Instance) []string {
		return append([]string{
			in.paths["mariadbd"], "--no-defaults",
			"--datadir=" + in.DataDir, "--socket=" + in.Socket, "--pid-file=" + in.Socket + ".pid",
			"--port=" + strconv.Itoa(in.Port), "--bind-address=127.0.0.1", "--skip-name-resolve",
			"--init-file=" + in.initFile(), "--log-error=" + in.log,
			fmt.Sprintf("--innodb-buffer-pool-size=%dM", max(in.buffer, 16)), "--innodb-flush-method=O_DIRECT",
			"--performance-schema=OFF", "--skip-log-bin", "--max-connections=5000",
		}, in.Options...)
	},
	greet: func(in *Instance, conn net.Conn) (version string, err error) {
		return greeting(conn)
	},
}

// greeting reads the first packet a MySQL server sends: protocol version 10, then the server's version as a string
// ended by a zero byte.
func greeting(conn io.Reader) (version string, err error) {
	packet := make([]byte, 128)
	if _, err := io.ReadAtLeast(conn, packet, 6); err != nil {
		return "", fmt.Errorf("read the server's greeting: %w", err)
	}
	if packet[4] != 10 {
		return "", fmt.Errorf("read the server's greeting: protocol %d, not 10", packet[4])
	}
	text, _, _ := bytes.Cut(packet[5:], []byte{0})
	return cleanVersion(string(text)), nil
}

// cleanVersion makes "5.5.5-10.11.19-MariaDB-0+deb12u1" into "10.11.19-MariaDB": the prefix is there
// for old replicas, the end is the packager's.
func cleanVersion(v string) string {
	v = strings.TrimPrefix(v, "5.5.5-")
	if head, _, ok := strings.Cut(v, "-MariaDB"); ok {
		return head + "-MariaDB"
	}
	return v
}

// initFile is what MariaDB and MySQL run at each start.
func (in *Instance) initFile() string { return filepath.Join(in.RunDir, "init.sql") }

// writeInit has the server make its database where it is not there.
func (in *Instance) writeInit() error {
	text := "CREATE DATABASE IF NOT EXISTS " + in.Account.Database + ";\n"
	if err := os.WriteFile(in.initFile(), []byte(text), 0o644); err != nil {
		return fmt.Errorf("write %s's init file: %w", in.Kind.Title, err)
	}
	return nil
}
