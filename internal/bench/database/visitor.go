package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/dblogin"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	goredis "github.com/redis/go-redis/v9"
)

// In a server that exists a run makes one place of its own, and nothing else: a database of MariaDB, a schema of
// PostgreSQL, keys of Redis that begin with it. ownMark is a table that tells one that a run made, or was given empty.
const (
	OwnPlace = "bulkhead_bench"
	ownMark  = "made_by_bulkhead"
	OwnKeys  = OwnPlace + ":"
)

// LoginTime is how long logging in to a server may take.
const LoginTime = 10 * time.Second

// visitor is the run's own connection to a server that exists.
type visitor interface {
	// greet tells the version and the port.
	Greet(ctx context.Context) (version string, port int, err error)
	// look says whether the run may have its place there.
	Look(ctx context.Context) error
	// settle makes the place, or empties what a killed run left in it; leave takes it away.
	Settle(ctx context.Context) error
	Leave(ctx context.Context) error
}

// ErrTaken says that another run, on this machine or another one, works in a database that exists.
var ErrTaken = errors.New("another proof is running on it")

// Visit logs in. What is wrong with that is a RequirementError; close ends the connection.
func Visit(ctx context.Context, in *Instance) (v visitor, closes func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, LoginTime)
	defer cancel()
	switch in.Engine {
	case "redis":
		c := in.login.OpenRedis()
		if err := c.Ping(ctx).Err(); err != nil {
			return nil, nil, in.refused(errors.Join(err, c.Close()))
		}
		return &keyVisitor{c}, c.Close, nil
	case "postgresql":
		conn, err := in.login.OpenPostgres(ctx, map[string]string{"options": OwnPath}) // as the load generators will
		if err != nil {
			return nil, nil, in.refused(err)
		}
		return &tableVisitor{words: postgresWords, query: pgQuery(conn)},
			func() error { return conn.Close(context.WithoutCancel(ctx)) }, nil
	}
	db, err := in.login.OpenMySQL(in.Account.Database)
	if err != nil {
		return nil, nil, in.refused(err)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, nil, in.refused(errors.Join(err, db.Close()))
	}
	return &tableVisitor{words: mysqlWords, query: sqlQuery(conn)},
		func() error { return errors.Join(conn.Close(), db.Close()) }, nil
}

// Execute runs a statement in a server of ours, as its administrator.
func (in *Instance) Execute(ctx context.Context, statement string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, LoginTime)
	defer cancel()
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s %s: %s: %w", in.Kind.Title, in.Name, statement, err)
		}
	}()
	if in.Engine == "postgresql" {
		login, err := dblogin.Parse(fmt.Sprintf("postgres://%s@:%d/postgres?host=%s", in.Account.User, in.Port,
			url.QueryEscape(in.RunDir)))
		if err != nil {
			return err
		}
		conn, err := login.OpenPostgres(ctx, nil)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, statement)
		return errors.Join(err, conn.Close(ctx))
	}
	login, err := in.own()
	if err != nil {
		return err
	}
	db, err := login.OpenMySQL("")
	if err != nil {
		return err
	}
	_, err = db.ExecContext(ctx, statement)
	return errors.Join(err, db.Close())
}

// own is how the administrator of our MariaDB or MySQL logs in.
func (in *Instance) own() (*dblogin.Login, error) {
	return dblogin.Parse("mysql://root@localhost/?socket=" + url.QueryEscape(in.Socket))
}

// Number is the database of a Redis.
func (in *Instance) Number() int {
	n, _ := strconv.Atoi(in.Account.Database) // readDSN has looked at it; "" is 0
	return n
}

// refused says why a login failed, and what to look at.
func (in *Instance) refused(err error) error {
	hint := "is it running, and does the DSN name the right host, port and account?"
	var lookup *net.DNSError
	var my *mysql.MySQLError
	var pg *pgconn.PgError
	var answer goredis.Error
	what := "cannot be used"
	switch {
	case errors.As(err, &lookup):
		hint = "the name of the host in the DSN is not known here"
	case errors.As(err, &my) && my.Number == 1049, errors.As(err, &pg) && pg.Code == "3D000":
		hint = fmt.Sprintf("the DSN ends in a database that is there already; the run makes its own, %s, beside it",
			OwnPlace)
	case errors.As(err, &my), errors.As(err, &pg), errors.As(err, &answer):
		hint = "look at user, password and database in the DSN; write a character such as @ : / # % of a password as " +
			"%40 %3A %2F %23 %25"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrDeadlineExceeded),
		errors.Is(err, context.DeadlineExceeded):
		what = "does not answer"
	}
	return &process.RequirementError{Reason: fmt.Sprintf("database %q %s at %s: %s", in.Name, what, in.Where(),
		OneLine(err)), Hint: hint}
}

// OneLine is the text of an error in one line.
func OneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// words are what MariaDB and PostgreSQL say differently.
type words struct {
	version, port, lock string
	path                string // the place that names without one mean; "" is not asked
	exists, tables      string
	create, drop        string
	allow               string // how an administrator lets the account make the place
}

// OwnPath makes names without a schema mean the run's own (PostgreSQL).
const OwnPath = "-c search_path=" + OwnPlace

var mysqlWords = words{
	version: "SELECT VERSION()", port: "SELECT @@port", lock: "SELECT GET_LOCK('" + OwnPlace + "', 0)",
	exists: "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = '" + OwnPlace + "'",
	tables: "SELECT table_name FROM information_schema.tables WHERE table_schema = '" + OwnPlace + "'",
	create: "CREATE DATABASE " + OwnPlace, drop: "DROP DATABASE " + OwnPlace,
	allow: "GRANT ALL ON " + OwnPlace + ".* TO the account lets it",
}

var postgresWords = words{
	version: "SHOW server_version", port: "SELECT setting FROM pg_settings WHERE name = 'port'",
	lock:   "SELECT pg_try_advisory_lock(hashtext('" + OwnPlace + "'))::int",
	path:   "SHOW search_path",
	exists: "SELECT COUNT(*) FROM pg_namespace WHERE nspname = '" + OwnPlace + "'",
	tables: "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = '" +
		OwnPlace + "' AND relkind IN ('r', 'v', 'm', 'p', 'f')",
	create: "CREATE SCHEMA " + OwnPlace, drop: "DROP SCHEMA " + OwnPlace + " CASCADE",
	allow: "GRANT CREATE ON DATABASE … TO the account lets it",
}

// tableVisitor is one for MariaDB and PostgreSQL. query gives the first column of the answer as text.
type tableVisitor struct {
	words words
	query func(ctx context.Context, statement string) ([]string, error)
}

func sqlQuery(conn *sql.Conn) func(context.Context, string) ([]string, error) {
	return func(ctx context.Context, statement string) (list []string, err error) {
		rows, err := conn.QueryContext(ctx, statement)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, rows.Close()) }()
		for rows.Next() {
			var s string
			if err := rows.Scan(&s); err != nil {
				return nil, err
			}
			list = append(list, s)
		}
		return list, rows.Err()
	}
}

func pgQuery(conn *pgx.Conn) func(context.Context, string) ([]string, error) {
	return func(ctx context.Context, statement string) (list []string, err error) {
		results, err := conn.PgConn().Exec(ctx, statement).ReadAll()
		for _, r := range results {
			for _, row := range r.Rows {
				list = append(list, string(row[0]))
			}
		}
		return list, err
	}
}

// one asks for one value.
func (v *tableVisitor) one(ctx context.Context, statement string) (string, error) {
	list, err := v.query(ctx, statement)
	if err == nil && len(list) != 1 {
		err = fmt.Errorf("%d answers", len(list))
	}
	if err != nil {
		return "", fmt.Errorf("ask the server %q: %w", statement, err)
	}
	return list[0], nil
}

func (v *tableVisitor) Greet(ctx context.Context) (version string, port int, err error) {
	if version, err = v.one(ctx, v.words.version); err != nil {
		return "", 0, err
	}
	text, err := v.one(ctx, v.words.port)
	if err != nil {
		return "", 0, err
	}
	if port, err = strconv.Atoi(text); err != nil {
		return "", 0, fmt.Errorf("ask the server for its port: %w", err)
	}
	return version, port, nil
}

// state is what is there under the run's name.
func (v *tableVisitor) state(ctx context.Context) (there bool, tables []string, err error) {
	n, err := v.one(ctx, v.words.exists)
	if err != nil || n == "0" {
		return false, nil, err
	}
	if tables, err = v.query(ctx, v.words.tables); err != nil {
		return true, nil, fmt.Errorf("ask the server for what is in %s: %w", OwnPlace, err)
	}
	return true, tables, nil
}

func (v *tableVisitor) Look(ctx context.Context) error {
	// Through a pooler that drops the option, pgbench would meet the user's own tables.
	if v.words.path != "" {
		if path, err := v.one(ctx, v.words.path); err != nil || path != OwnPlace {
			return errors.Join(err,
				fmt.Errorf("its search_path is %q although the login asked for %q: connect to the server itself and "+
					"not to a pooler", path, OwnPlace))
		}
	}
	if got, err := v.one(ctx, v.words.lock); err != nil || got != "1" {
		return errors.Join(err, ErrTaken)
	}
	_, tables, err := v.state(ctx)
	if err != nil {
		return err
	}
	if len(tables) > 0 && !slices.Contains(tables, ownMark) {
		return fmt.Errorf("there is a %s with tables in it that no proof made (%s): it is not touched; rename it, or "+
			"take it away if nobody needs it",
			OwnPlace, strings.Join(tables[:min(3, len(tables))], ", "))
	}
	return nil
}

func (v *tableVisitor) Settle(ctx context.Context) error {
	if err := v.Look(ctx); err != nil {
		return err
	}
	if err := v.Leave(ctx); err != nil {
		return err
	}
	there, _, err := v.state(ctx)
	if err != nil {
		return err
	}
	made := "0"
	if !there {
		if _, err := v.query(ctx, v.words.create); err != nil {
			return &process.RequirementError{Reason: fmt.Sprintf("the account of the DSN cannot make %s: %v", OwnPlace,
				OneLine(err)), Hint: v.words.allow + "; or make an empty one that it owns, which is then used and kept"}
		}
		made = "1"
	}
	if _, err := v.query(ctx, "CREATE TABLE "+OwnPlace+"."+ownMark+" AS SELECT "+made+" AS made"); err != nil {
		return fmt.Errorf("mark %s: %w", OwnPlace, err)
	}
	return nil
}

// Leave takes away what runs made: the place, or what is in it where it was given.
func (v *tableVisitor) Leave(ctx context.Context) error {
	there, tables, err := v.state(ctx)
	if err != nil || !there || !slices.Contains(tables, ownMark) {
		return err
	}
	made, err := v.one(ctx, "SELECT made FROM "+OwnPlace+"."+ownMark)
	if err != nil {
		return err
	}
	statements := []string{v.words.drop}
	if made == "0" {
		statements = nil
		// The mark goes last: until then the rest is known to be ours.
		for _, t := range append(slices.DeleteFunc(tables, func(t string) bool { return t == ownMark }), ownMark) {
			statements = append(statements, "DROP TABLE "+OwnPlace+"."+t)
		}
	}
	for _, s := range statements {
		if _, err := v.query(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// keyVisitor is one for Redis.
type keyVisitor struct{ c *goredis.Client }

func (v *keyVisitor) Greet(ctx context.Context) (version string, port int, err error) {
	text, err := v.c.Info(ctx, "server").Result()
	if err != nil {
		return "", 0, fmt.Errorf("ask Redis for its version: %w", err)
	}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "redis_version":
			version = value + "-Redis"
		case "tcp_port":
			if port, err = strconv.Atoi(value); err != nil {
				return "", 0, fmt.Errorf("ask Redis for its port: %w", err)
			}
		}
	}
	return version, port, nil
}

// Look gives the connection the run's name, which is the lock: Redis has no other that goes with a connection. Of two
// that come at once both may see the other and end. An account that may not ask for connections has none. Whatever key
// begins with the run's name is a run's.
func (v *keyVisitor) Look(ctx context.Context) error {
	name := v.c.Do(ctx, "CLIENT", "SETNAME", OwnPlace).Err()
	own, err := v.c.ClientID(ctx).Result()
	list, listErr := v.c.ClientList(ctx).Result()
	if errors.Join(name, err, listErr) != nil {
		return nil
	}
	number := "db=" + strconv.Itoa(v.c.Options().DB)
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if slices.Contains(fields, "name="+OwnPlace) && slices.Contains(fields, number) &&
			!slices.Contains(fields, fmt.Sprintf("id=%d", own)) {
			return ErrTaken
		}
	}
	return nil
}

func (v *keyVisitor) Settle(ctx context.Context) error {
	if err := v.Look(ctx); err != nil {
		return err
	}
	return v.Leave(ctx)
}

func (v *keyVisitor) Leave(ctx context.Context) error {
	keys := v.c.Scan(ctx, 0, OwnKeys+"*", 1000).Iterator()
	var some []string
	drop := func() error {
		if len(some) == 0 {
			return nil
		}
		err := v.c.Del(ctx, some...).Err()
		some = some[:0]
		return err
	}
	for keys.Next(ctx) {
		if some = append(some, keys.Val()); len(some) == 1000 {
			if err := drop(); err != nil {
				return fmt.Errorf("take keys away: %w", err)
			}
		}
	}
	if err := errors.Join(keys.Err(), drop()); err != nil {
		return fmt.Errorf("take keys away: %w", err)
	}
	return nil
}

// Named is a version with the name of its program.
func Named(e *Engine, version string) string {
	version, _, _ = strings.Cut(version, " ") // PostgreSQL's has the packager behind it
	if version = cleanVersion(version); !strings.Contains(version, "-") {
		version += "-" + e.Title
	}
	return version
}
