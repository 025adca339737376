package bench

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	goredis "github.com/redis/go-redis/v9"
)

// In a server that exists a run makes one place of its own, and nothing else: a database of MariaDB, a schema of PostgreSQL, keys of
// Redis that begin with it. ownMark is a table that tells one that a run made, or was given empty.
const (
	ownPlace = "bulkhead_bench"
	ownMark  = "made_by_bulkhead"
	ownKeys  = ownPlace + ":"
)

const loginTime = 10 * time.Second

// visitor is the run's own connection to a server that exists.
type visitor interface {
	// greet tells the version and the port.
	greet(ctx context.Context) (version string, port int, err error)
	// look says whether the run may have its place there.
	look(ctx context.Context) error
	// settle makes the place, or empties what a killed run left in it; leave takes it away.
	settle(ctx context.Context) error
	leave(ctx context.Context) error
}

// errTaken says that another run, on this machine or another one, works in a database that exists.
var errTaken = errors.New("another proof is running on it")

// visit logs in. What is wrong with that is a RequirementError; close ends the connection.
func visit(ctx context.Context, in *instance) (v visitor, closes func() error, err error) {
	ctx, cancel := context.WithTimeout(ctx, loginTime)
	defer cancel()
	network, address := in.place()
	switch in.Engine {
	case "redis":
		goredis.SetLogger(quiet{}) // what goes wrong comes back as an error
		c := goredis.NewClient(&goredis.Options{
			Network: network, Addr: address, Username: in.account.user, Password: in.account.password, DB: in.number(),
			MaxRetries: -1, PoolSize: 1, DisableIdentity: true, DialerRetries: 1,
		})
		if err := c.Ping(ctx).Err(); err != nil {
			return nil, nil, in.refused(errors.Join(err, c.Close()))
		}
		return &keyVisitor{c}, c.Close, nil
	case "postgresql":
		c, err := pgx.ParseConfig(in.postgresURL())
		if err != nil {
			return nil, nil, in.refused(err)
		}
		c.RuntimeParams["options"] = ownPath // as the load generators will
		conn, err := pgx.ConnectConfig(ctx, c)
		if err != nil {
			return nil, nil, in.refused(err)
		}
		return &tableVisitor{words: postgresWords, query: pgQuery(conn)}, func() error { return conn.Close(context.Background()) }, nil
	}
	c := mysql.NewConfig()
	c.Net, c.Addr, c.User, c.Passwd, c.DBName, c.Logger = network, address, in.account.user, in.account.password, in.account.database, &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, nil, in.refused(err)
	}
	db := sql.OpenDB(connector)
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, nil, in.refused(errors.Join(err, db.Close()))
	}
	return &tableVisitor{words: mysqlWords, query: sqlQuery(conn)}, func() error { return errors.Join(conn.Close(), db.Close()) }, nil
}

// postgresURL is the DSN as libpq has it, where TLS is used if the server offers it, as the load generators will.
func (in *instance) postgresURL() string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(in.account.user, in.account.password), Host: net.JoinHostPort(in.host, strconv.Itoa(in.port)), Path: "/" + in.account.database}
	if in.host == "" {
		u.Host = ""
		u.RawQuery = url.Values{"host": {in.socketOfClient()}, "port": {strconv.Itoa(in.port)}}.Encode()
	}
	return u.String()
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// number is the database of a Redis.
func (in *instance) number() int {
	n, _ := strconv.Atoi(in.account.database) // readDSN has looked at it; "" is 0
	return n
}

// refused says why a login failed, and what to look at.
func (in *instance) refused(err error) error {
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
		hint = fmt.Sprintf("the DSN ends in a database that is there already; the run makes its own, %s, beside it", ownPlace)
	case errors.As(err, &my), errors.As(err, &pg), errors.As(err, &answer):
		hint = "look at user, password and database in the DSN; write a character such as @ : / # % of a password as %40 %3A %2F %23 %25"
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		what = "does not answer"
	}
	return &RequirementError{Reason: fmt.Sprintf("database %q %s at %s: %s", in.Name, what, in.where(), oneLine(err)), Hint: hint}
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// words are what MariaDB and PostgreSQL say differently.
type words struct {
	version, port, lock string
	path                string // the place that names without one mean; "" is not asked
	exists, tables      string
	create, drop        string
	allow               string // how an administrator lets the account make the place
}

// ownPath makes names without a schema mean the run's own (PostgreSQL).
const ownPath = "-c search_path=" + ownPlace

var mysqlWords = words{
	version: "SELECT VERSION()", port: "SELECT @@port", lock: "SELECT GET_LOCK('" + ownPlace + "', 0)",
	exists: "SELECT COUNT(*) FROM information_schema.schemata WHERE schema_name = '" + ownPlace + "'",
	tables: "SELECT table_name FROM information_schema.tables WHERE table_schema = '" + ownPlace + "'",
	create: "CREATE DATABASE " + ownPlace, drop: "DROP DATABASE " + ownPlace,
	allow: "GRANT ALL ON " + ownPlace + ".* TO the account lets it",
}

var postgresWords = words{
	version: "SHOW server_version", port: "SELECT setting FROM pg_settings WHERE name = 'port'",
	lock:   "SELECT pg_try_advisory_lock(hashtext('" + ownPlace + "'))::int",
	path:   "SHOW search_path",
	exists: "SELECT COUNT(*) FROM pg_namespace WHERE nspname = '" + ownPlace + "'",
	tables: "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = '" + ownPlace + "' AND relkind IN ('r', 'v', 'm', 'p', 'f')",
	create: "CREATE SCHEMA " + ownPlace, drop: "DROP SCHEMA " + ownPlace + " CASCADE",
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

func (v *tableVisitor) greet(ctx context.Context) (version string, port int, err error) {
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
		return true, nil, fmt.Errorf("ask the server for what is in %s: %w", ownPlace, err)
	}
	return true, tables, nil
}

func (v *tableVisitor) look(ctx context.Context) error {
	// Through a pooler that drops the option, pgbench would meet the user's own tables.
	if v.words.path != "" {
		if path, err := v.one(ctx, v.words.path); err != nil || path != ownPlace {
			return errors.Join(err, fmt.Errorf("its search_path is %q although the login asked for %q: connect to the server itself and not to a pooler", path, ownPlace))
		}
	}
	if got, err := v.one(ctx, v.words.lock); err != nil || got != "1" {
		return errors.Join(err, errTaken)
	}
	_, tables, err := v.state(ctx)
	if err != nil {
		return err
	}
	if len(tables) > 0 && !slices.Contains(tables, ownMark) {
		return fmt.Errorf("there is a %s with tables in it that no proof made (%s): it is not touched; rename it, or take it away if nobody needs it",
			ownPlace, strings.Join(tables[:min(3, len(tables))], ", "))
	}
	return nil
}

func (v *tableVisitor) settle(ctx context.Context) error {
	if err := v.look(ctx); err != nil {
		return err
	}
	if err := v.leave(ctx); err != nil {
		return err
	}
	there, _, err := v.state(ctx)
	if err != nil {
		return err
	}
	made := "0"
	if !there {
		if _, err := v.query(ctx, v.words.create); err != nil {
			return &RequirementError{Reason: fmt.Sprintf("the account of the DSN cannot make %s: %v", ownPlace, oneLine(err)), Hint: v.words.allow + "; or make an empty one that it owns, which is then used and kept"}
		}
		made = "1"
	}
	if _, err := v.query(ctx, "CREATE TABLE "+ownPlace+"."+ownMark+" AS SELECT "+made+" AS made"); err != nil {
		return fmt.Errorf("mark %s: %w", ownPlace, err)
	}
	return nil
}

// leave takes away what runs made: the place, or what is in it where it was given.
func (v *tableVisitor) leave(ctx context.Context) error {
	there, tables, err := v.state(ctx)
	if err != nil || !there || !slices.Contains(tables, ownMark) {
		return err
	}
	made, err := v.one(ctx, "SELECT made FROM "+ownPlace+"."+ownMark)
	if err != nil {
		return err
	}
	statements := []string{v.words.drop}
	if made == "0" {
		statements = nil
		// The mark goes last: until then the rest is known to be ours.
		for _, t := range append(slices.DeleteFunc(tables, func(t string) bool { return t == ownMark }), ownMark) {
			statements = append(statements, "DROP TABLE "+ownPlace+"."+t)
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

func (v *keyVisitor) greet(ctx context.Context) (version string, port int, err error) {
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

// look gives the connection the run's name, which is the lock: Redis has no other that goes with a connection. Of two that come at
// once both may see the other and end. An account that may not ask for connections has none. Whatever key begins with the run's name
// is a run's.
func (v *keyVisitor) look(ctx context.Context) error {
	name := v.c.Do(ctx, "CLIENT", "SETNAME", ownPlace).Err()
	own, err := v.c.ClientID(ctx).Result()
	list, listErr := v.c.ClientList(ctx).Result()
	if errors.Join(name, err, listErr) != nil {
		return nil
	}
	number := "db=" + strconv.Itoa(v.c.Options().DB)
	for line := range strings.Lines(list) {
		fields := strings.Fields(line)
		if slices.Contains(fields, "name="+ownPlace) && slices.Contains(fields, number) && !slices.Contains(fields, fmt.Sprintf("id=%d", own)) {
			return errTaken
		}
	}
	return nil
}

func (v *keyVisitor) settle(ctx context.Context) error {
	if err := v.look(ctx); err != nil {
		return err
	}
	return v.leave(ctx)
}

func (v *keyVisitor) leave(ctx context.Context) error {
	keys := v.c.Scan(ctx, 0, ownKeys+"*", 1000).Iterator()
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

// spare says what a scenario asks of a database that is not done to one that exists.
func (r *run) spare() error {
	no := func(name, what string) error {
		return &RequirementError{Reason: fmt.Sprintf("database %q exists (dsn), and the scenario would %s", name, what), Hint: "leave the dsn out: then the run starts a throw-away server for it"}
	}
	for _, d := range r.scenario.Databases {
		if d.DSN == "" {
			continue
		}
		if r.scenario.Wire {
			return no(d.Name, "work in network namespaces of its own (wire), from where it is not reached")
		}
		for _, a := range r.scenario.Arms {
			switch {
			case slices.Contains(a.Restart, d.Name):
				return no(d.Name, fmt.Sprintf("restart it in arm %q", a.Name))
			case a.Dies == d.Name:
				return no(d.Name, fmt.Sprintf("let it be killed in arm %q", a.Name))
			}
		}
		for _, n := range r.scenario.Neighbours {
			if n.On == d.Name {
				return no(d.Name, fmt.Sprintf("have its neighbour %q log in as the server's owner", n.Name))
			}
		}
	}
	return nil
}

// lookAtExisting logs in to every database that exists, before anything is started or changed.
func (r *run) lookAtExisting(ctx context.Context) error {
	for _, d := range r.scenario.Databases {
		if d.DSN == "" {
			continue
		}
		in, err := newInstance(d, "", 0, r.paths, nil)
		if err != nil {
			return err
		}
		r.existing = append(r.existing, in)
		for _, l := range r.scenario.Loads {
			if _, known := ownCommands[cmp.Or(l.Script, "get")]; l.On == d.Name && l.Program == "redis-benchmark" && !known {
				return &RequirementError{Reason: fmt.Sprintf("load %q would run %q, which may touch keys of others in database %q", l.Name, l.Script, d.Name), Hint: "on a database that exists there are " + strings.Join(slices.Sorted(maps.Keys(ownCommands)), ", ")}
			}
		}
		if err := r.lookAt(ctx, in); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) lookAt(ctx context.Context, in *instance) error {
	v, closes, err := visit(ctx, in)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, loginTime)
	defer cancel()
	version, port, err := v.greet(ctx)
	if err == nil {
		in.version, in.port = named(in.engine, version), port
		err = v.look(ctx)
	}
	if err = errors.Join(err, closes()); err != nil {
		return &RequirementError{Reason: fmt.Sprintf("database %q at %s: %s", in.Name, in.where(), oneLine(err)), Hint: "nothing was started or changed"}
	}
	return nil
}

// named is a version with the name of its program.
func named(e *engine, version string) string {
	version, _, _ = strings.Cut(version, " ") // PostgreSQL's has the packager behind it
	if version = cleanVersion(version); !strings.Contains(version, "-") {
		version += "-" + e.title
	}
	return version
}

// enter makes the run's place in a database that exists. The connection stays: it holds the lock that keeps others out.
func (r *run) enter(ctx context.Context, name string) error {
	in := r.existing[slices.IndexFunc(r.existing, func(in *instance) bool { return in.Name == name })]
	in.nursery = r.nursery
	r.databases = append(r.databases, in)
	r.progress.phase("logging in to " + in.engine.title + " " + name)
	v, closes, err := visit(ctx, in)
	if err != nil {
		return err
	}
	// Interrupted in the middle it could not be told from something of the user's.
	settled, cancel := context.WithTimeout(context.WithoutCancel(ctx), loginTime)
	defer cancel()
	err = v.settle(settled)
	if errors.Is(err, errTaken) { // what is there is the other run's
		return errors.Join(fmt.Errorf("database %q at %s: %w; wait until it has ended", name, in.where(), err), closes())
	}
	r.undo.add("take "+ownPlace+" out of "+name, func(ctx context.Context) error {
		// Over a new connection: the server may have ended one that was quiet for so long.
		again, closeAgain, err := visit(ctx, in)
		if err != nil {
			return errors.Join(err, closes())
		}
		return errors.Join(again.leave(ctx), closeAgain(), closes())
	})
	return err
}
