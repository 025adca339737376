package backuplock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"bulkhead/internal/dblogin"
)

// Position is where a server stood while it was locked.
type Position struct {
	// Binlog is FILE:OFFSET of the next event; "" without a binary log.
	Binlog string `json:"binlog,omitempty"`
	// GTID is what was executed (MySQL) or the position of the binary log (MariaDB).
	GTID string `json:"gtid,omitempty"`
	// Replica is, of a replica, where its source's events were applied up to: HOST:PORT FILE:OFFSET, by channel.
	Replica []string `json:"replica,omitempty"`
	// LSN is PostgreSQL's, flushed or, on a standby, replayed.
	LSN string `json:"lsn,omitempty"`
	// AtLeast says that commits went on: the snapshot has everything up to the position, and may have more.
	AtLeast bool `json:"at_least,omitempty"`
}

// String is for people.
func (p Position) String() string {
	parts := []string{}
	for _, part := range []struct{ name, value string }{{"binlog ", p.Binlog}, {"GTID ", p.GTID}, {"LSN ", p.LSN},
		{"replica ", strings.Join(p.Replica, ", ")}} {
		if part.value != "" {
			parts = append(parts, part.name+part.value)
		}
	}
	text := strings.Join(parts, ", ")
	if text != "" && p.AtLeast {
		text = "at or behind " + text
	}
	return text
}

// ErrLost says that the lock ended before its holder ended it.
var ErrLost = errors.New("the server did not keep the lock until the end")

// Limits bound what a lock costs.
type Limits struct {
	Wait time.Duration // for the lock: whole seconds, one at least
	Hold time.Duration // the lock, from when it is there
}

// Session is a login that may lock.
type Session struct {
	Version string
	// Lock names the statements that lock; "" for none.
	Lock string
	// Settings are those that its files depend on, by name.
	Settings map[string]string
	// Files are data files that lie elsewhere than in the data directory, absolute.
	Files []string

	server
	limits Limits
	cancel context.CancelFunc
	timer  *time.Timer
	asked  time.Time // when the last lock was asked for
	until  time.Time // when the lock ends by itself
	secret string
}

// server is the part that differs between engines. Nothing of it waits longer than its context.
type server interface {
	lock(ctx context.Context, s *Session) error
	position(ctx context.Context) (Position, error)
	unlock(ctx context.Context) error
	close()
}

// plain takes the password out of an error.
func (s *Session) plain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return context.Canceled
	}
	return errors.New(dblogin.Hide(strings.Join(strings.Fields(err.Error()), " "), s.secret))
}

// Take locks the server and says where it stands. From here on Limits.Hold runs: when it is over, the session is ended.
func (s *Session) Take(ctx context.Context) (Position, error) {
	ctx, s.cancel = context.WithCancel(ctx)
	if err := s.lock(ctx, s); err != nil {
		s.Close()
		return Position{}, fmt.Errorf("lock the server for the snapshot, within %s: %w", s.limits.Wait, s.plain(err))
	}
	p, err := s.position(ctx)
	if err != nil {
		s.Close()
		return p, fmt.Errorf("ask the server where it stands: %w", s.plain(err))
	}
	return p, nil
}

// begin is called before the last statement that locks: from here on others may wait.
func (s *Session) begin() { s.asked = time.Now() }

// arm is called when the server is locked.
func (s *Session) arm() {
	s.until = time.Now().Add(s.limits.Hold)
	s.timer = time.AfterFunc(s.limits.Hold, s.end)
}

// Left is how long the lock may still be held.
func (s *Session) Left() time.Duration { return time.Until(s.until) }

// Release unlocks, and gives how long others may have waited: since the last lock was asked for. The error is ErrLost
// where the lock was gone already: what was done meanwhile was not done under it.
func (s *Session) Release(ctx context.Context) (held time.Duration, err error) {
	defer s.Close()
	if s.Lock == "" {
		return 0, nil
	}
	ctx, stop := context.WithTimeout(ctx, max(s.Left(), time.Second))
	defer stop()
	err = s.unlock(ctx)
	held = time.Since(s.asked)
	if s.timer != nil && !s.timer.Stop() || err != nil {
		err = errors.Join(ErrLost, s.plain(err))
	}
	return held, err
}

// Close ends the session, and with it any lock.
func (s *Session) Close() {
	if s.timer != nil {
		s.timer.Stop()
	}
	s.end()
}

func (s *Session) end() {
	s.cancel()
	if s.server != nil {
		s.close()
	}
}
