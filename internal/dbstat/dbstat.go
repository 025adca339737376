// Package dbstat asks a database how much work it has done and how long that took, by its own counters. What the figure
// means for a limit it does not know. Package dblogin says how a data source name is written.
//
//	MySQL, MariaDB   Questions, statements of clients
//	PostgreSQL       transactions of all databases
//	Redis, Valkey    total_commands_processed
package dbstat

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"bulkhead/internal/dblogin"
)

// Source is one database. It is for one goroutine.
type Source struct {
	// Counter is what is counted: "Questions".
	Counter string
	ask     func(context.Context) (int64, error)
	times   func(context.Context) ([]Bucket, error)
	close   func() error
}

// Parse reads a data source name. Nothing is asked yet; a password in it is in no error.
func Parse(dsn string) (*Source, error) {
	l, err := dblogin.Parse(dsn)
	if err != nil {
		return nil, err
	}
	return Of(l)
}

// Of is the source of a login. Nothing is asked yet.
func Of(l *dblogin.Login) (*Source, error) {
	switch l.Engine {
	case dblogin.MySQL:
		return mysqlSource(l)
	case dblogin.PostgreSQL:
		return postgresSource(l), nil
	default:
		return redisSource(l), nil
	}
}

// Work is what the database has done since it started. It counts from nothing again when the database restarts.
func (s *Source) Work(ctx context.Context) (int64, error) { return s.ask(ctx) }

// Times are how long statements took since the server began to count, the quickest first. Buckets without statements
// are left out. It is a NoTimesError where the server does not count that.
//
//	MySQL 8         performance_schema.events_statements_histogram_global, buckets 4.7 % apart, here in steps of 1-2-5
//	MariaDB         plugin QUERY_RESPONSE_TIME, buckets as query_response_time_range_base has them
//	Redis 7, Valkey LATENCY HISTOGRAM, buckets of powers of two
//
// The time in a bucket is the server's own in MariaDB. Elsewhere it is reckoned from the middle of each bucket.
func (s *Source) Times(ctx context.Context) ([]Bucket, error) { return s.times(ctx) }

// Close ends the connection.
func (s *Source) Close() error { return s.close() }

func mysqlSource(l *dblogin.Login) (*Source, error) {
	db, err := l.OpenMySQL("") // the counter is of all databases
	if err != nil {
		return nil, err
	}
	times := func(ctx context.Context) ([]Bucket, error) { return mysqlTimes(ctx, db) }
	ask := func(ctx context.Context) (n int64, err error) {
		var name, value string
		if err := db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &value); err != nil {
			return 0, fmt.Errorf("ask MySQL for its Questions: %w", err)
		}
		return strconv.ParseInt(value, 10, 64)
	}
	return &Source{Counter: "Questions", ask: ask, times: times, close: db.Close}, nil
}

// closeTimeout is how long closing a connection to PostgreSQL may take.
const closeTimeout = time.Second

// application is what bulkhead calls itself in pg_stat_activity.
var application = map[string]string{"application_name": "bulkhead"}

func postgresSource(l *dblogin.Login) *Source {
	var conn *pgx.Conn
	var asked context.Context // of the last question, without its end: a connection is closed after that
	drop := func() error {
		if conn == nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(asked, closeTimeout)
		defer cancel()
		err := conn.Close(ctx)
		conn = nil
		return err
	}
	none := func(context.Context) ([]Bucket, error) { return nil, noTimesOfPostgres }
	ask := func(ctx context.Context) (n int64, err error) {
		asked = context.WithoutCancel(ctx)
		if conn == nil {
			if conn, err = l.OpenPostgres(ctx, application); err != nil {
				return 0, fmt.Errorf("connect to PostgreSQL: %w", err)
			}
		}
		// Statistics of a session that is busy arrive with up to a second's delay (pgstat.c).
		if err = conn.QueryRow(ctx,
			"SELECT coalesce(sum(xact_commit + xact_rollback), 0)::int8 FROM pg_stat_database").Scan(&n); err != nil {
			return 0, errors.Join(fmt.Errorf("ask PostgreSQL for its transactions: %w", err), drop())
		}
		return n, nil
	}
	return &Source{Counter: "transactions", ask: ask, times: none, close: drop}
}

func redisSource(l *dblogin.Login) *Source {
	c := l.OpenRedis()
	const counter = "total_commands_processed"
	times := func(ctx context.Context) ([]Bucket, error) { return redisTimes(ctx, c) }
	return &Source{Counter: counter, close: c.Close, times: times, ask: func(ctx context.Context) (int64, error) {
		text, err := c.Info(ctx, "stats").Result()
		if err != nil {
			return 0, fmt.Errorf("ask Redis for %s: %w", counter, err)
		}
		for line := range strings.Lines(text) {
			if value, is := strings.CutPrefix(strings.TrimSpace(line), counter+":"); is {
				return strconv.ParseInt(value, 10, 64)
			}
		}
		return 0, fmt.Errorf("ask Redis for %s: it does not tell", counter)
	}}
}
