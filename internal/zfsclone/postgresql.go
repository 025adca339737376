package zfsclone

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"bulkhead/internal/linux/treecopy"
)

func hbaFile(p *Plan) string   { return filepath.Join(p.Dir(), "pg_hba.conf") }
func identFile(p *Plan) string { return filepath.Join(p.Dir(), "pg_ident.conf") }

// controlled are the settings that a standby needs at least as large as its source has them, by their names in the
// output of pg_controldata.
var controlled = map[string]string{
	"max_connections setting":      "max_connections",
	"max_worker_processes setting": "max_worker_processes",
	"max_wal_senders setting":      "max_wal_senders",
	"max_prepared_xacts setting":   "max_prepared_transactions",
	"max_locks_per_xact setting":   "max_locks_per_transaction",
}

// preparePostgreSQL removes what makes a server the one that it is: its PID, its replication slots, its role as a
// standby, and what ALTER SYSTEM set, which has the last word over any option file. It gives the files of the copy.
func (m *Maker) preparePostgreSQL(ctx context.Context, p *Plan) ([]file, error) {
	root, rel, err := p.open(p.DataDir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	data, err := root.OpenRoot(rel)
	if err != nil {
		return nil, err
	}
	defer data.Close()
	text, err := data.ReadFile("PG_VERSION")
	if err != nil {
		return nil, err
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || major < 12 {
		return nil, refuse("", "PostgreSQL %s is too old: 12 and later have standby.signal",
			strings.TrimSpace(string(text)))
	}
	if err := without(data, "postmaster.pid", "postmaster.opts", "standby.signal", "recovery.signal",
		"pg_replslot/*"); err != nil {
		return nil, err
	}
	auto, err := data.OpenFile("postgresql.auto.conf", os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		err = auto.Close()
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if p.Replica != nil {
		uid, gid, err := treecopy.Owner(p.DataDir)
		if err != nil {
			return nil, err
		}
		signal, err := data.OpenFile("standby.signal", os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, err
		}
		if err := errors.Join(signal.Chown(uid, gid), signal.Close()); err != nil {
			return nil, err
		}
	}
	said, err := m.ZFS.Run(ctx, filepath.Join(filepath.Dir(p.Program), "pg_controldata"), p.DataDir)
	if err != nil {
		return nil, err
	}
	return p.postgresFiles(said), nil
}

// postgresFiles are the option file, who may log in, and who is who. controlData is what pg_controldata said.
func (p *Plan) postgresFiles(controlData string) []file {
	list := []option{{"data_directory", p.DataDir}, {"hba_file", hbaFile(p)}, {"ident_file", identFile(p)},
		{"external_pid_file", filepath.Join(p.Run(), "postmaster.pid")}, {"listen_addresses", "127.0.0.1"},
		{"port", strconv.Itoa(p.Port)}, {"unix_socket_directories", p.Socket()}, {"cluster_name", p.Name},
		{"shared_buffers", strconv.FormatInt(max(p.Memory>>10, 128), 10) + "kB"}, {"hot_standby", "on"},
		{"archive_mode", "off"}, {"logging_collector", "off"}, {"log_destination", "stderr"},
		// A subscription of the origin would take changes from its publisher's slot.
		{"max_logical_replication_workers", "0"}}
	for line := range strings.Lines(controlData) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if setting := controlled[name]; setting != "" {
			list = append(list, option{setting, strings.TrimSpace(value)})
		}
	}
	if r := p.Replica; r != nil {
		list = append(list, option{"primary_conninfo", "host=" + inConnection(r.Host) + " port=" +
			strconv.Itoa(r.Port) + " user=" + inConnection(r.User) + " password=" + inConnection(r.Password) +
			" application_name=" + inConnection(p.Name)})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Of the copy %s, made by bulkhead zfs clone. zfs refresh writes it anew.\n", p.Name)
	for _, o := range list {
		fmt.Fprintf(&b, "%s = '%s'\n", o.name, strings.NewReplacer(`\`, `\\`, "'", "''").Replace(o.value))
	}
	hba := "local all all peer map=copy\nhost all all 127.0.0.1/32 scram-sha-256\nhost all all ::1/128 scram-sha-256\n"
	ident := "copy root " + p.User + "\ncopy /^(.*)$ \\1\n"
	return []file{{p.OptionFile(), b.String(), 0o640}, {hbaFile(p), hba, 0o640}, {identFile(p), ident, 0o640}}
}

// inConnection is a value in a connection string of libpq.
func inConnection(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(text) + "'"
}
