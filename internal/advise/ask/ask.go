// Package ask asks database servers for the settings in force that rules of advice read: those that it is given the
// names of, and no others, so that no password which a server keeps among its settings is read. It changes nothing.
package ask

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"bulkhead/internal/dblogin"
)

// Answer is what a server says of itself.
type Answer struct {
	Version  string
	Port     int               // that it listens on, 0 where it does not tell
	DataDir  string            // "" where it does not tell
	Hostname string            // "" where it does not tell
	PID      int               // of the server, or of its process that answered; 0 where it does not tell
	Place    string            // where it was asked, without the account
	Values   map[string]string // settings by name, as the server writes them
}

// ErrNoAnswer says that a server did not answer in time.
var ErrNoAnswer = errors.New("no answer in time")

// Settings logs in to a server and asks for settings by their names, which are plain words of the program's own. A name
// that the server does not know is not in the answer. Without an answer until ctx ends the error is ErrNoAnswer. No
// error shows the password. check looks at the answer while the process that gave it still waits: its error is that of
// Settings.
func Settings(ctx context.Context, l *dblogin.Login, names []string, check func(*Answer) error) (*Answer, error) {
	a := &Answer{Values: map[string]string{}}
	_, a.Place = l.Place()
	ask := askRedis
	switch l.Engine {
	case dblogin.MySQL:
		ask = askMySQL
	case dblogin.PostgreSQL:
		ask = askPostgres
	}
	if err := ask(ctx, l, names, a, check); err != nil {
		var late net.Error
		if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &late) && late.Timeout() {
			return nil, ErrNoAnswer
		}
		text := strings.Join(strings.Fields(err.Error()), " ")
		return nil, errors.New(dblogin.Hide(text, l.Password))
	}
	return a, nil
}

// quoted are names as a list of SQL.
func quoted(names []string) string { return "'" + strings.Join(names, "', '") + "'" }

func askMySQL(ctx context.Context, l *dblogin.Login, names []string, a *Answer, check func(*Answer) error) (
	err error) {
	db, err := l.OpenMySQL("")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	own := []string{"version", "port", "datadir", "hostname"}
	for _, q := range []string{
		"SHOW GLOBAL VARIABLES WHERE Variable_name IN (" + quoted(append(own, names...)) + ")",
		"SHOW GLOBAL STATUS WHERE Variable_name IN (" + quoted(names) + ")",
	} {
		rows, err := db.QueryContext(ctx, q)
		if err != nil {
			return err
		}
		for rows.Next() {
			var name, value string
			if err := rows.Scan(&name, &value); err != nil {
				return errors.Join(err, rows.Close())
			}
			a.Values[strings.ToLower(name)] = value
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return err
		}
	}
	a.Version, a.DataDir, a.Hostname = a.Values["version"], a.Values["datadir"], a.Values["hostname"]
	if a.Port, err = strconv.Atoi(a.Values["port"]); err != nil {
		return err
	}
	return check(a)
}

func askPostgres(ctx context.Context, l *dblogin.Login, names []string, a *Answer, check func(*Answer) error) (
	err error) {
	conn, err := l.OpenPostgres(ctx, map[string]string{"application_name": "bulkhead"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	own := []string{"server_version", "port", "data_directory"}
	// The simple protocol, so that a pooler is understood, too.
	results, err := conn.PgConn().Exec(ctx, "SELECT name, current_setting(name) FROM pg_settings WHERE name IN ("+
		quoted(append(own, names...))+"); SELECT 'backend', pg_backend_pid()").ReadAll()
	if err != nil {
		return err
	}
	for _, r := range results {
		for _, row := range r.Rows {
			a.Values[string(row[0])] = string(row[1])
		}
	}
	a.Version, _, _ = strings.Cut(a.Values["server_version"], " ") // the packager's is behind it
	a.DataDir = a.Values["data_directory"]                         // told to those who may see all settings
	if a.PID, err = strconv.Atoi(a.Values["backend"]); err != nil {
		return err
	}
	if a.Port, err = strconv.Atoi(a.Values["port"]); err != nil {
		return err
	}
	return check(a)
}

func askRedis(ctx context.Context, l *dblogin.Login, names []string, a *Answer, check func(*Answer) error) (
	err error) {
	c := l.OpenRedis()
	defer func() { err = errors.Join(err, c.Close()) }()
	text, err := c.Info(ctx, "server").Result()
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		n, _ := strconv.Atoi(value)
		switch name {
		case "redis_version", "valkey_version":
			a.Version = value
		case "tcp_port":
			a.Port = n
		case "process_id":
			a.PID = n
		}
	}
	for _, name := range names { // several at once are understood since 7.0 only
		one, err := c.ConfigGet(ctx, name).Result()
		if err != nil {
			return fmt.Errorf("CONFIG GET %s: %w", name, err)
		}
		for key, value := range one {
			a.Values[key] = value
		}
	}
	return check(a)
}
