package backuplock

import (
	"context"
	"fmt"
	"time"

	"bulkhead/internal/dblogin"
)

// postgresSettings are those without which another server on the same files does not start, or starts with less.
const postgresSettings = "'data_directory', 'max_connections', 'max_prepared_transactions', 'max_worker_processes', " +
	"'max_locks_per_transaction', 'max_wal_senders', 'shared_preload_libraries', 'huge_pages', 'wal_level', " +
	"'server_version'"

// postgresServer locks nothing.
type postgresServer struct {
	end func()
	lsn string
}

func openPostgres(ctx context.Context, l *dblogin.Login, s *Session) (*postgresServer, error) {
	conn, err := l.OpenPostgres(ctx, map[string]string{"application_name": "bulkhead"})
	if err != nil {
		return nil, err
	}
	p := &postgresServer{end: func() {
		late, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer stop()
		_ = conn.Close(late)
	}}
	rows, err := conn.PgConn().Exec(ctx, "SELECT name, current_setting(name) FROM pg_settings WHERE name IN ("+
		postgresSettings+")").ReadAll()
	if err == nil {
		for _, r := range rows {
			for _, row := range r.Rows {
				s.Settings[string(row[0])] = string(row[1])
			}
		}
		s.Version = s.Settings["server_version"]
		err = conn.QueryRow(ctx, `SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
			ELSE pg_current_wal_flush_lsn() END::text`).Scan(&p.lsn)
	}
	if err != nil {
		p.end()
		return nil, fmt.Errorf("ask PostgreSQL where it stands: %w", err)
	}
	return p, nil
}

func (p *postgresServer) lock(context.Context, *Session) error { return nil }

// position is that of the login: what was flushed before is in the snapshot, and what came after may be.
func (p *postgresServer) position(context.Context) (Position, error) {
	return Position{LSN: p.lsn, AtLeast: true}, nil
}

func (p *postgresServer) unlock(context.Context) error { return nil }

func (p *postgresServer) close() { p.end() }
