// Package dblogin reads how to log in to a database server, and logs in. It owns the forms of data source names and the
// drivers' configurations; what is asked then it does not know.
//
//	mysql://USER[:PASSWORD]@HOST[:PORT]/[DATABASE]  MySQL and its flavours; also mariadb://
//	mysql://USER[:PASSWORD]@localhost/?socket=PATH
//	postgres://…                                    as in libpq, also postgresql://; a socket by ?host=DIRECTORY
//	redis://[USER:PASSWORD@]HOST[:PORT][/NUMBER]    Redis and Valkey; rediss:// with TLS
//	unix://[USER:PASSWORD@]/PATH[?db=NUMBER]        a socket of Redis; also redis://localhost/?socket=PATH
//
// No error shows a password. A Login does not change once it is read, and is safe for concurrent use.
package dblogin

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
)

// The engines that can be logged in to. MySQL is each of its flavours, Redis also Valkey.
const (
	MySQL      = "mysql"
	PostgreSQL = "postgresql"
	Redis      = "redis"
)

// engines are the schemes of data source names, and ports where engines listen by default.
var (
	engines = map[string]string{"mysql": MySQL, "mariadb": MySQL, "postgres": PostgreSQL, "postgresql": PostgreSQL,
		"redis": Redis, "rediss": Redis, "unix": Redis}
	ports = map[string]int{MySQL: 3306, PostgreSQL: 5432, Redis: 6379}
)

// Login says where a server is and how to log in.
type Login struct {
	Engine   string // MySQL, PostgreSQL or Redis
	Scheme   string // as it is written
	Host     string // "" for a socket
	Port     int
	Socket   string // absolute; "" over TCP
	User     string
	Password string
	Database string   // Redis: its number; "" where none is named
	Others   []string // names of the options beside socket, host and db, sorted
	postgres *pgx.ConnConfig
	redis    *redis.Options
}

var errForm = errors.New("not a data source name of the form ENGINE://USER@HOST/")

// Parse reads a data source name. Nothing is connected yet.
func Parse(dsn string) (*Login, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme == "" {
		return nil, errForm // err holds the password
	}
	l := &Login{Engine: engines[u.Scheme], Scheme: u.Scheme, Host: u.Hostname(), User: u.User.Username(),
		Database: strings.TrimPrefix(u.Path, "/")}
	if l.Engine == "" {
		return nil, fmt.Errorf("the counters and settings of %q are not known: mysql, postgres, redis and unix (a "+
			"socket of Redis) are", u.Scheme)
	}
	l.Password, _ = u.User.Password()
	if l.Port = ports[l.Engine]; u.Port() != "" {
		if l.Port, err = strconv.Atoi(u.Port()); err != nil || l.Port < 1 || l.Port > 65535 {
			return nil, fmt.Errorf("it has port %q", u.Port())
		}
	}
	if strings.ContainsAny(l.User+l.Password, "\n\r\x00") {
		return nil, errors.New("its account has a line break")
	}
	if err := l.place(u); err != nil {
		return nil, errors.New(Hide(err.Error(), l.Password))
	}
	return l, nil
}

// place reads the host or the socket, and the options.
func (l *Login) place(u *url.URL) (err error) {
	query := u.Query()
	if l.Scheme == "unix" {
		l.Host, l.Socket, l.Database = "", u.Path, ""
	}
	for _, key := range slices.Sorted(maps.Keys(query)) {
		value := query.Get(key)
		switch {
		case strings.Contains(strings.ToLower(key), "password"):
			return fmt.Errorf("it has the option %s: write the password behind the user, as in USER:PASSWORD@HOST", key)
		case key == "socket" && l.Engine != PostgreSQL:
			l.Host, l.Socket = "", value
			query.Del(key)
		case key == "host" && l.Engine == PostgreSQL && strings.HasPrefix(value, "/"):
			l.Host, l.Socket = "", filepath.Join(value, ".s.PGSQL."+strconv.Itoa(l.Port))
		case key == "db" && l.Engine == Redis:
			l.Database = value
		default:
			l.Others = append(l.Others, key)
		}
	}
	if l.Socket != "" && !filepath.IsAbs(l.Socket) {
		return fmt.Errorf("it names the socket %q, which is no absolute path", l.Socket)
	}
	switch l.Engine {
	case PostgreSQL:
		l.postgres, err = pgx.ParseConfig(u.String())
		return err
	case Redis:
		l.redis, err = redis.ParseURL(l.redisURL(*u, query))
		return err
	}
	if l.Host == "" && l.Socket == "" {
		return errors.New("mysql: name a host, or a socket: mysql://USER@localhost/?socket=/run/mysqld/mysqld.sock")
	}
	return nil
}

// redisURL is the DSN as the driver reads it, which knows no option for a socket.
func (l *Login) redisURL(u url.URL, query url.Values) string {
	if l.Socket != "" && l.Scheme != "unix" {
		u = url.URL{Scheme: "unix", User: u.User, Path: l.Socket}
		if l.Database != "" {
			query.Set("db", l.Database)
		}
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// Place is where the server listens, as net.Dial wants it.
func (l *Login) Place() (network, address string) {
	if l.Socket != "" {
		return "unix", l.Socket
	}
	return "tcp", net.JoinHostPort(l.Host, strconv.Itoa(l.Port))
}

// Hide takes a password out of a text. One of two letters or less says nothing where it stands by chance, and would
// take whole words apart.
func Hide(text, password string) string {
	if len(password) <= 2 {
		return text
	}
	for _, form := range []string{password, strings.Trim(strconv.Quote(password), `"`), url.QueryEscape(password),
		url.PathEscape(password)} {
		text = strings.ReplaceAll(text, form, "xxxxx")
	}
	return text
}

// quiet drivers: what goes wrong comes back as an error.
var quiet = sync.OnceFunc(func() {
	_ = mysql.SetLogger(&mysql.NopLogger{})
	redis.SetLogger(nop{})
})

type nop struct{}

func (nop) Printf(context.Context, string, ...any) {}

// OpenMySQL gives connections to MySQL, made when they are needed; database "" is none.
func (l *Login) OpenMySQL(database string) (*sql.DB, error) {
	quiet()
	c := mysql.NewConfig()
	c.Net, c.Addr = l.Place()
	c.User, c.Passwd, c.DBName, c.Logger = l.User, l.Password, database, &mysql.NopLogger{}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(1)
	return db, nil
}

// OpenPostgres logs in to PostgreSQL with parameters of the session. TLS is used as libpq does, where the server offers
// it.
func (l *Login) OpenPostgres(ctx context.Context, parameters map[string]string) (*pgx.Conn, error) {
	c := l.postgres.Copy()
	maps.Copy(c.RuntimeParams, parameters)
	return pgx.ConnectConfig(ctx, c)
}

// OpenRedis gives a connection to Redis, made when it is needed and tried once.
func (l *Login) OpenRedis() *redis.Client {
	quiet()
	o := *l.redis
	o.PoolSize, o.MaxRetries, o.DialerRetries, o.DisableIdentity = 1, -1, 1, true
	o.ContextTimeoutEnabled = true // else it waits its own seconds for an answer
	return redis.NewClient(&o)
}
