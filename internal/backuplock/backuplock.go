// Package backuplock holds one session of a database server that locks it for a snapshot, and says where the server
// stands meanwhile. It takes the lightest lock that keeps that position true:
//
//	MariaDB 10.4+      BACKUP STAGE BLOCK_COMMIT: commits wait, reading goes on
//	MySQL 8            LOCK INSTANCE FOR BACKUP: DDL waits; and FLUSH TABLES WITH READ LOCK where tables without
//	                   transactions, or a binary log without GTIDs, need it
//	older              FLUSH TABLES WITH READ LOCK: all writing waits
//	PostgreSQL         none: a snapshot of all its files at one moment is what its recovery is made for
//
// The lock ends with its session. So the end of this program by a signal ends it too, and Limit ends it when the time
// is over. A Session is for one goroutine.
package backuplock

import (
	"context"
	"fmt"
	"time"

	"bulkhead/internal/dblogin"
)

// Open logs in and asks what the server is. Nothing is locked yet. The end of ctx ends the session, and what it locks.
func Open(ctx context.Context, l *dblogin.Login, limits Limits) (*Session, error) {
	limits.Wait = max(limits.Wait.Round(time.Second), time.Second)
	s := &Session{limits: limits, Settings: map[string]string{}, cancel: func() {}, secret: l.Password}
	// Who is asked may be down, or hang: a login has the time that a lock has.
	begin, stop := context.WithTimeout(ctx, limits.Wait)
	defer stop()
	var err error
	switch l.Engine {
	case dblogin.MySQL:
		s.server, err = openMySQL(begin, l, s)
	case dblogin.PostgreSQL:
		s.server, err = openPostgres(begin, l, s)
	default:
		err = fmt.Errorf("snapshots of %s are not built", l.Engine)
	}
	if err != nil {
		return nil, s.plain(err)
	}
	return s, nil
}
