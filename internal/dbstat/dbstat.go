// Package dbstat asks a database how much work it has done, by its own counter. It owns the connections that this
// takes, and how a data source name tells the engine; what the figure means for a limit it does not know.
//
//	mysql://USER[:PASSWORD]@HOST[:PORT]/            Questions, statements of clients (MySQL, MariaDB)
//	mysql://USER[:PASSWORD]@localhost/?socket=PATH
//	postgres://…                                    transactions of all databases, as in libpq; a socket by
//	                                                ?host=DIRECTORY
//	redis://[:PASSWORD@]HOST[:PORT]                 total_commands_processed (Redis, Valkey)
//	unix://[:PASSWORD@]/PATH
package dbstat

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// Source is one database. It is for one goroutine.
type Source struct {
	// Counter is what is counted: "Questions".
	Counter string
	ask     func(context.Context) (int64, error)
	close   func() error
}

// Parse reads a data source name. Nothing is asked yet; a password in it is in no error.
func Parse(dsn string) (*Source, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, errors.New("not a data source name of the form ENGINE://USER@HOST/") // err holds the password
	}
	var s *Source
	switch u.Scheme {
	case "mysql":
		s, err = mysqlSource(u)
	case "postgres", "postgresql":
		s, err = postgresSource(dsn)
	case "redis", "rediss", "unix":
		s, err = redisSource(dsn)
	case "":
		return nil, errors.New("not a data source name of the form ENGINE://USER@HOST/")
	default:
		return nil, fmt.Errorf("the counters of %q are not known: mysql, postgres, redis and unix (a socket of "+
			"Redis) are", u.Scheme)
	}
	if err != nil {
		return nil, errors.New(hide(err.Error(), u))
	}
	return s, nil
}

// hide takes a password out of a text.
func hide(text string, u *url.URL) string {
	if u.User == nil {
		return text
	}
	password, _ := u.User.Password()
	if password == "" {
		return text
	}
	for _, form := range []string{password, url.QueryEscape(password), url.PathEscape(password)} {
		text = strings.ReplaceAll(text, form, "xxxxx")
	}
	return text
}

// Work is what the database has done since it started. It counts from nothing again when the database restarts.
func (s *Source) Work(ctx context.Context) (int64, error) { return s.ask(ctx) }

// Close ends the connection.
func (s *Source) Close() error { return s.close() }

// quiet drivers: what goes wrong comes back as an error.
var quiet = sync.OnceFunc(func() {
	_ = mysql.SetLogger(&mysql.NopLogger{})
	redis.SetLogger(nop{})
})

type nop struct{}

func (nop) Printf(context.Context, string, ...any) {}

func mysqlSource(u *url.URL) (*Source, error) {
	quiet()
	c := mysql.NewConfig()
	c.User = u.User.Username()
	c.Passwd, _ = u.User.Password()
	c.Net, c.Addr = "tcp", net.JoinHostPort(u.Hostname(), orPort(u, "3306"))
	if path := u.Query().Get("socket"); path != "" {
		c.Net, c.Addr = "unix", path
	} else if u.Hostname() == "" {
		return nil, errors.New("mysql: name a host, or a socket: " +
			"mysql://USER@localhost/?socket=/run/mysqld/mysqld.sock")
	}
	var connector driver.Connector
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	return &Source{Counter: "Questions", close: db.Close, ask: func(ctx context.Context) (n int64, err error) {
		var name, value string
		if err := db.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &value); err != nil {
			return 0, fmt.Errorf("ask MySQL for its Questions: %w", err)
		}
		return strconv.ParseInt(value, 10, 64)
	}}, nil
}

func orPort(u *url.URL, port string) string {
	if p := u.Port(); p != "" {
		return p
	}
	return port
}

// closeTimeout is how long closing a connection to PostgreSQL may take.
const closeTimeout = time.Second

func postgresSource(dsn string) (*Source, error) {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	c.RuntimeParams["application_name"] = "bulkhead"
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
	return &Source{Counter: "transactions", close: drop, ask: func(ctx context.Context) (n int64, err error) {
		asked = context.WithoutCancel(ctx)
		if conn == nil {
			if conn, err = pgx.ConnectConfig(ctx, c); err != nil {
				return 0, fmt.Errorf("connect to PostgreSQL: %w", err)
			}
		}
		// Statistics of a session that is busy arrive with up to a second's delay (pgstat.c).
		if err = conn.QueryRow(ctx,
			"SELECT coalesce(sum(xact_commit + xact_rollback), 0)::int8 FROM pg_stat_database").Scan(&n); err != nil {
			return 0, errors.Join(fmt.Errorf("ask PostgreSQL for its transactions: %w", err), drop())
		}
		return n, nil
	}}, nil
}

func redisSource(dsn string) (*Source, error) {
	quiet()
	o, err := redis.ParseURL(dsn)
	if err != nil {
		return nil, err
	}
	o.PoolSize, o.MaxRetries = 1, -1
	c := redis.NewClient(o)
	const counter = "total_commands_processed"
	return &Source{Counter: counter, close: c.Close, ask: func(ctx context.Context) (int64, error) {
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
	}}, nil
}
