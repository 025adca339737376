package database

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"bulkhead/internal/bench/process"
)

// mysql97 starts MySQL: no configuration file of the host, direct IO. Its root has no password, and logs in over the
// socket alone, whose directory only root and the server's user may enter.
var mysql97 = &Engine{
	Title:    "MySQL",
	Programs: []process.Program{{Name: "mysqld", Package: "mysql-server-core"}},
	user:     "mysql", port: 3306, end: syscall.SIGTERM,
	Install: func(ctx context.Context, in *Instance) error {
		in.Socket = filepath.Join(in.RunDir, "mysqld.sock")
		if err := in.writeInit(); err != nil {
			return err
		}
		return in.tool(ctx, in.owner, append(MySQLServer(in.paths, in.DataDir), "--initialize-insecure",
			"--innodb-flush-method=nosync")...)
	},
	command: func(in *Instance) []string {
		return append(append(MySQLServer(in.paths, in.DataDir),
			"--socket="+in.Socket, "--pid-file="+in.Socket+".pid", "--port="+strconv.Itoa(in.Port),
			"--bind-address=127.0.0.1", "--skip-name-resolve", "--init-file="+in.initFile(),
			"--log-error="+in.log, fmt.Sprintf("--innodb-buffer-pool-size=%dM", max(in.buffer, 16)),
			"--innodb-flush-method=O_DIRECT", "--performance-schema=OFF", "--skip-log-bin", "--max-connections=5000",
			"--mysqlx=OFF"), in.Options...)
	},
	greet: func(_ *Instance, conn net.Conn) (version string, err error) {
		version, err = greeting(conn)
		version, _, _ = strings.Cut(version, "-") // behind it is the packager's
		return version + "-MySQL", err
	},
}

// MySQLServer begins each command of a release's server. Messages and plug-ins of the host would be another one's, and
// the directory that Debian's package makes for files of LOAD DATA is not there.
func MySQLServer(p process.Programs, dataDir string) []string {
	usr := filepath.Dir(filepath.Dir(p["mysqld"]))
	return []string{p["mysqld"], "--no-defaults", "--basedir=" + usr, "--secure-file-priv=NULL",
		"--plugin-dir=" + filepath.Join(usr, "lib/mysql/plugin"), "--datadir=" + dataDir}
}
