package backuplock

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"bulkhead/internal/advise/fact"
	"bulkhead/internal/dblogin"
)

// Settings that the files of a server depend on, and where it keeps them.
const (
	mysqlSettings = "datadir basedir plugin_dir log_bin log_bin_basename log_bin_index relay_log_basename " +
		"relay_log_index innodb_data_home_dir innodb_data_file_path innodb_undo_directory innodb_undo_tablespaces " +
		"innodb_log_group_home_dir innodb_log_file_size innodb_log_files_in_group innodb_page_size " +
		"innodb_checksum_algorithm innodb_temp_data_file_path aria_log_dir_path lower_case_table_names " +
		"character_set_server collation_server sql_mode gtid_mode enforce_gtid_consistency server_id"
)

// mysqlServer is MySQL or MariaDB.
type mysqlServer struct {
	db      *sql.DB
	conn    *sql.Conn
	version string
	mariadb bool
	// global says that FLUSH TABLES WITH READ LOCK is used.
	global   bool
	instance bool // LOCK INSTANCE FOR BACKUP is
	once     sync.Once
}

func openMySQL(ctx context.Context, l *dblogin.Login, s *Session) (*mysqlServer, error) {
	db, err := l.OpenMySQL("")
	if err != nil {
		return nil, err
	}
	return newMySQL(ctx, db, s)
}

func newMySQL(ctx context.Context, db *sql.DB, s *Session) (*mysqlServer, error) {
	m := &mysqlServer{db: db}
	var err error
	if m.conn, err = db.Conn(ctx); err == nil {
		err = m.look(ctx, s)
	}
	if err != nil {
		m.close()
		return nil, err
	}
	return m, nil
}

// look asks for what has to be known before anything is locked, since it takes time.
func (m *mysqlServer) look(ctx context.Context, s *Session) error {
	if err := m.conn.QueryRowContext(ctx, "SELECT VERSION()").Scan(&s.Version); err != nil {
		return err
	}
	m.mariadb, m.version = strings.Contains(s.Version, "MariaDB"), s.Version
	rows, err := m.rows(ctx, "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('"+
		strings.ReplaceAll(mysqlSettings, " ", "', '")+"')")
	if err != nil {
		return err
	}
	for _, r := range rows {
		s.Settings[strings.ToLower(r["Variable_name"])] = r["Value"]
	}
	if s.Files, err = m.files(ctx, s.Settings["datadir"]); err != nil {
		return err
	}
	switch {
	case m.mariadb && m.since("10.4.1"):
		s.Lock = "BACKUP STAGE BLOCK_COMMIT"
	case !m.mariadb && m.since("8.0.11"):
		m.instance = true
		s.Lock = "LOCK INSTANCE FOR BACKUP"
		loose, err := m.rows(ctx, `SELECT 1 FROM information_schema.tables WHERE engine IN ('MyISAM', 'CSV', 'ARCHIVE',
			'MRG_MyISAM') AND table_schema NOT IN ('mysql', 'sys', 'information_schema', 'performance_schema') LIMIT 1`)
		if err != nil {
			return err
		}
		on := strings.EqualFold(s.Settings["log_bin"], "ON") || s.Settings["log_bin"] == "1"
		m.global = len(loose) > 0 || on && !strings.EqualFold(s.Settings["gtid_mode"], "ON")
		if m.global {
			s.Lock += ", FLUSH TABLES WITH READ LOCK"
		}
	default:
		m.global = true
		s.Lock = "FLUSH TABLES WITH READ LOCK"
	}
	return nil
}

// files are the data files of InnoDB that lie outside of the data directory, temporary ones left out.
func (m *mysqlServer) files(ctx context.Context, dataDir string) ([]string, error) {
	from := "PATH FROM information_schema.INNODB_SYS_DATAFILES"
	switch {
	case m.mariadb && m.since("10.6.0"):
		from = "FILENAME FROM information_schema.INNODB_SYS_TABLESPACES WHERE NAME <> 'innodb_temporary'"
	case !m.mariadb && m.since("8.0.0"):
		from = "FILE_NAME FROM information_schema.FILES WHERE ENGINE = 'InnoDB' AND FILE_TYPE <> 'TEMPORARY'"
	}
	rows, err := m.rows(ctx, "SELECT "+from)
	if err != nil {
		return nil, fmt.Errorf("ask for the data files: %w", err)
	}
	var outside []string
	for _, r := range rows {
		for _, name := range r { // the only column
			if name == "" {
				continue
			}
			if !filepath.IsAbs(name) {
				name = filepath.Join(dataDir, name)
			}
			if !strings.HasPrefix(name, strings.TrimSuffix(dataDir, "/")+"/") {
				outside = append(outside, name)
			}
		}
	}
	return outside, nil
}

// since says whether the server's version is at least another. MariaDB may have "5.5.5-" before it, for old replicas.
func (m *mysqlServer) since(version string) bool {
	return fact.Since(strings.TrimPrefix(m.version, "5.5.5-"), version)
}

// lock goes through the statements. Each has what is left of the time to wait, which the server keeps itself: one
// that only this side gave up would still lock.
func (m *mysqlServer) lock(ctx context.Context, s *Session) error {
	var steps []string
	switch {
	case m.mariadb && !m.global:
		steps = []string{"BACKUP STAGE START", "BACKUP STAGE FLUSH", "BACKUP STAGE BLOCK_DDL",
			"BACKUP STAGE BLOCK_COMMIT"}
	case m.instance:
		steps = []string{"LOCK INSTANCE FOR BACKUP"}
		if m.global {
			steps = append(steps, "FLUSH TABLES WITH READ LOCK")
		}
	default:
		steps = []string{"FLUSH TABLES WITH READ LOCK"}
	}
	end := time.Now().Add(s.limits.Wait)
	for i, statement := range steps {
		left := max(int(time.Until(end).Round(time.Second)/time.Second), 1)
		if _, err := m.conn.ExecContext(ctx, "SET SESSION lock_wait_timeout = "+strconv.Itoa(left)); err != nil {
			return err
		}
		if i == len(steps)-1 {
			s.begin()
		}
		// The server ends the wait for a lock, but may be busy with something else.
		ctx, stop := context.WithTimeout(ctx, time.Duration(left)*time.Second+time.Second)
		_, err := m.conn.ExecContext(ctx, statement)
		stop()
		if err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	s.arm()
	return nil
}

func (m *mysqlServer) unlock(ctx context.Context) error {
	statements := []string{}
	switch {
	case m.mariadb && !m.global:
		statements = append(statements, "BACKUP STAGE END")
	case m.global:
		statements = append(statements, "UNLOCK TABLES")
	}
	if m.instance {
		statements = append(statements, "UNLOCK INSTANCE")
	}
	for _, s := range statements {
		if _, err := m.conn.ExecContext(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

func (m *mysqlServer) position(ctx context.Context) (Position, error) {
	p := Position{AtLeast: m.instance && !m.global}
	if p.AtLeast {
		return p, m.logStatus(ctx, &p)
	}
	ask, replicas := "SHOW MASTER STATUS", m.showReplicas()
	if !m.mariadb && m.since("8.2.0") {
		ask = "SHOW BINARY LOG STATUS"
	}
	rows, err := m.rows(ctx, ask)
	if err != nil {
		return p, fmt.Errorf("%s: %w", ask, err)
	}
	if len(rows) > 0 { // none without a binary log
		p.Binlog, p.GTID = rows[0]["File"]+":"+rows[0]["Position"], rows[0]["Executed_Gtid_Set"]
	}
	if m.mariadb {
		if err := m.conn.QueryRowContext(ctx, "SELECT @@GLOBAL.gtid_binlog_pos").Scan(&p.GTID); err != nil {
			return p, err
		}
	}
	p.GTID = strings.ReplaceAll(p.GTID, "\n", "")
	if rows, err = m.rows(ctx, replicas); err != nil {
		return p, fmt.Errorf("%s: %w", replicas, err)
	}
	for _, r := range rows {
		either := func(name string) string { return cmp.Or(r[name], r[older.Replace(name)]) }
		text := either("Source_Host") + ":" + either("Source_Port") + " " + either("Relay_Source_Log_File") + ":" +
			either("Exec_Source_Log_Pos")
		if channel := cmp.Or(r["Channel_Name"], r["Connection_name"]); channel != "" {
			text = channel + "=" + text
		}
		p.Replica = append(p.Replica, text)
	}
	return p, nil
}

// older gives the names of columns before MySQL 8.0.22, and MariaDB's.
var older = strings.NewReplacer("Source", "Master")

// logStatus asks where MySQL 8 stands while commits go on: one table gives all of it for one moment.
func (m *mysqlServer) logStatus(ctx context.Context, p *Position) error {
	var local, replication string
	if err := m.conn.QueryRowContext(ctx, "SELECT LOCAL, REPLICATION FROM performance_schema.log_status").
		Scan(&local, &replication); err != nil {
		return fmt.Errorf("performance_schema.log_status: %w", err)
	}
	return readLogStatus(local, replication, p)
}

func readLogStatus(local, replication string, p *Position) error {
	var l struct {
		GTID     string `json:"gtid_executed"`
		File     string `json:"binary_log_file"`
		Position int64  `json:"binary_log_position"`
	}
	var r struct {
		Channels []struct {
			Name     string `json:"channel_name"`
			File     string `json:"relay_log_file"`
			Position int64  `json:"relay_log_position"`
		} `json:"channels"`
	}
	if err := json.Unmarshal([]byte(local), &l); err != nil {
		return fmt.Errorf("read performance_schema.log_status: %w", err)
	}
	if err := json.Unmarshal([]byte(replication), &r); err != nil {
		return fmt.Errorf("read performance_schema.log_status: %w", err)
	}
	p.GTID = strings.ReplaceAll(l.GTID, "\n", "")
	if l.File != "" {
		p.Binlog = l.File + ":" + strconv.FormatInt(l.Position, 10)
	}
	for _, c := range r.Channels { // of its own relay log: the source's position is in the tables of the snapshot
		p.Replica = append(p.Replica, c.Name+"=relay log "+c.File+":"+strconv.FormatInt(c.Position, 10))
	}
	return nil
}

// rows reads all rows of a statement whose columns differ between versions.
func (m *mysqlServer) rows(ctx context.Context, query string) ([]map[string]string, error) {
	found, err := m.conn.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer found.Close()
	names, err := found.Columns()
	if err != nil {
		return nil, err
	}
	var rows []map[string]string
	for found.Next() {
		values, into := make([]sql.NullString, len(names)), make([]any, len(names))
		for i := range values {
			into[i] = &values[i]
		}
		if err := found.Scan(into...); err != nil {
			return nil, err
		}
		row := map[string]string{}
		for i, n := range names {
			row[n] = values[i].String
		}
		rows = append(rows, row)
	}
	return rows, found.Err()
}

// close ends the connection, on which the server drops what the session locked.
func (m *mysqlServer) close() {
	m.once.Do(func() {
		if m.conn != nil {
			_ = m.conn.Close()
		}
		_ = m.db.Close()
	})
}
