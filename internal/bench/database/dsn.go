package database

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/dblogin"
)

// dsnSchemes are what a DSN may begin with, by engine.
var dsnSchemes = map[string][]string{
	"mariadb": {"mysql", "mariadb"}, "postgresql": {"postgresql", "postgres"}, "redis": {"redis", "unix"},
}

// dsnForms are how a DSN is written, by engine.
var dsnForms = map[string]string{
	"mariadb": "mysql://USER:PASSWORD@HOST:PORT/DATABASE, over a socket " +
		"mysql://USER:PASSWORD@localhost/DATABASE?socket=PATH",
	"postgresql": "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, over a socket " +
		"postgresql://USER:PASSWORD@localhost:PORT/DATABASE?host=DIRECTORY",
	"redis": "redis://USER:PASSWORD@HOST:PORT/NUMBER, over a socket unix://USER:PASSWORD@/PATH?db=NUMBER",
}

// SecretDSN is a DSN as it was given, or what stands in the file that "@PATH" names.
func SecretDSN(given string) (string, error) {
	dsn, err := dblogin.Secret(given)
	var others *dblogin.OpenFileError
	switch {
	case errors.As(err, &others):
		return "", &process.RequirementError{Reason: fmt.Sprintf("the file of a DSN, %q, is open to others (mode %04o)",
			others.Path, others.Mode), Hint: "chmod 600 " + others.Path}
	case err != nil:
		return "", &process.RequirementError{Reason: err.Error(),
			Hint: "write the DSN into a file that only you may read, and name it with @PATH"}
	}
	return dsn, nil
}

// ReadDSN reads where a server that exists is and how to log in. The load generators get host, port and account, and
// so a DSN with more is refused. No error shows the password.
func (in *Instance) ReadDSN() error {
	bad := func(format string, args ...any) error {
		return &process.RequirementError{
			Reason: fmt.Sprintf("the DSN of database %q %s", in.Name, fmt.Sprintf(format, args...)),
			Hint:   "write " + dsnForms[in.Engine],
		}
	}
	if scheme, _, found := strings.Cut(in.DSN, "://"); found && !slices.Contains(dsnSchemes[in.Engine], scheme) {
		return bad("begins with %q, not with %s", scheme, strings.Join(dsnSchemes[in.Engine], " or "))
	}
	l, err := dblogin.Parse(in.DSN)
	if err != nil {
		return bad("cannot be used: %s", err)
	}
	in.login, in.Host, in.Port, in.Socket = l, l.Host, l.Port, l.Socket
	in.Account = Account{User: l.User, Password: l.Password, Database: l.Database}
	switch {
	case len(l.Others) > 0:
		return bad("has the option %q, which is not known here", l.Others[0])
	case in.Host == "" && in.Socket == "":
		return bad("names no host")
	case in.Engine == "redis" && in.Account.Database != "":
		if n, err := strconv.Atoi(in.Account.Database); err != nil || n < 0 {
			return bad("has database %q, which is not a number", in.Account.Database)
		}
	case in.Engine != "redis" && (in.Account.User == "" || in.Account.Database == ""):
		return bad("names no user or no database")
	}
	return nil
}

// Place is where the server listens, as net.Dial wants it.
func (in *Instance) Place() (network, address string) {
	if in.Host == "" {
		return "unix", in.Socket
	}
	return "tcp", net.JoinHostPort(in.Host, strconv.Itoa(in.Port))
}
