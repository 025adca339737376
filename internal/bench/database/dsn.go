package database

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/bench/process"
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

// SecretDSN is a DSN as it was given, or what stands in the file that "@PATH" names: what is on a command line is for
// all to read.
func SecretDSN(given string) (string, error) {
	path, isFile := strings.CutPrefix(given, "@")
	if !isFile {
		return given, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", &process.RequirementError{Reason: fmt.Sprintf("the file of a DSN cannot be read: %v", err),
			Hint: "write the DSN into a file that only you may read, and name it with @PATH"}
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", &process.RequirementError{Reason: fmt.Sprintf("the file of a DSN, %q, is open to others (mode %04o)",
			path, info.Mode().Perm()), Hint: "chmod 600 " + path}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the file of a DSN: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// ReadDSN reads where a server that exists is and how to log in. No error shows the password.
func (in *Instance) ReadDSN() error {
	bad := func(format string, args ...any) error {
		return &process.RequirementError{
			Reason: fmt.Sprintf("the DSN of database %q %s", in.Name, fmt.Sprintf(format, args...)),
			Hint:   "write " + dsnForms[in.Engine],
		}
	}
	u, err := url.Parse(in.DSN)
	if err != nil {
		return bad("is not a URL") // the error would show the password
	}
	if !slices.Contains(dsnSchemes[in.Engine], u.Scheme) {
		return bad("begins with %q, not with %s", u.Scheme, strings.Join(dsnSchemes[in.Engine], " or "))
	}
	in.Port = in.Kind.port
	if p := u.Port(); p != "" {
		if in.Port, err = strconv.Atoi(p); err != nil || in.Port < 1 || in.Port > 65535 {
			return bad("has port %q", p)
		}
	}
	in.Account = Account{User: u.User.Username(), Database: strings.TrimPrefix(u.Path, "/")}
	in.Account.Password, _ = u.User.Password()
	if strings.ContainsAny(in.Account.Password+in.Account.User, "\n\r\x00") {
		return bad("has a line break in its account")
	}
	if err := in.readPlace(u); err != nil {
		return bad("%s", err)
	}
	switch {
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

// readPlace reads the host or the socket.
func (in *Instance) readPlace(u *url.URL) error {
	in.Host = u.Hostname()
	if u.Scheme == "unix" {
		in.Host, in.Socket, in.Account.Database = "", u.Path, ""
	}
	for key, values := range u.Query() {
		value := values[len(values)-1]
		switch {
		case key == "socket" && in.Engine != "postgresql":
			in.Host, in.Socket = "", value
		case key == "host" && in.Engine == "postgresql" && strings.HasPrefix(value, "/"):
			in.Host, in.Socket = "", filepath.Join(value, ".s.PGSQL."+strconv.Itoa(in.Port))
		case key == "db" && in.Engine == "redis":
			in.Account.Database = value
		default:
			return fmt.Errorf("has the option %q, which is not known here", key)
		}
	}
	if in.Socket != "" && !filepath.IsAbs(in.Socket) {
		return fmt.Errorf("names the socket %q, which is no absolute path", in.Socket)
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
