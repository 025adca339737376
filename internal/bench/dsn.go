package bench

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// dsnSchemes are what a DSN may begin with, by engine.
var dsnSchemes = map[string][]string{
	"mariadb": {"mysql", "mariadb"}, "postgresql": {"postgresql", "postgres"}, "redis": {"redis", "unix"},
}

// dsnForms are how a DSN is written, by engine.
var dsnForms = map[string]string{
	"mariadb":    "mysql://USER:PASSWORD@HOST:PORT/DATABASE, over a socket mysql://USER:PASSWORD@localhost/DATABASE?socket=PATH",
	"postgresql": "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, over a socket postgresql://USER:PASSWORD@localhost:PORT/DATABASE?host=DIRECTORY",
	"redis":      "redis://USER:PASSWORD@HOST:PORT/NUMBER, over a socket unix://USER:PASSWORD@/PATH?db=NUMBER",
}

// secretDSN is a DSN as it was given, or what stands in the file that "@PATH" names: what is on a command line is for all to read.
func secretDSN(given string) (string, error) {
	path, isFile := strings.CutPrefix(given, "@")
	if !isFile {
		return given, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", &RequirementError{Reason: fmt.Sprintf("the file of a DSN cannot be read: %v", err), Hint: "write the DSN into a file that only you may read, and name it with @PATH"}
	}
	if info.Mode().Perm()&0o077 != 0 {
		return "", &RequirementError{Reason: fmt.Sprintf("the file of a DSN, %q, is open to others (mode %04o)", path, info.Mode().Perm()), Hint: "chmod 600 " + path}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the file of a DSN: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// readDSN reads where a server that exists is and how to log in. No error shows the password.
func (in *instance) readDSN() error {
	bad := func(format string, args ...any) error {
		return &RequirementError{
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
	in.port = in.engine.port
	if p := u.Port(); p != "" {
		if in.port, err = strconv.Atoi(p); err != nil || in.port < 1 || in.port > 65535 {
			return bad("has port %q", p)
		}
	}
	in.account = account{user: u.User.Username(), database: strings.TrimPrefix(u.Path, "/")}
	in.account.password, _ = u.User.Password()
	if strings.ContainsAny(in.account.password+in.account.user, "\n\r\x00") {
		return bad("has a line break in its account")
	}
	if err := in.readPlace(u); err != nil {
		return bad("%s", err)
	}
	switch {
	case in.host == "" && in.socket == "":
		return bad("names no host")
	case in.Engine == "redis" && in.account.database != "":
		if n, err := strconv.Atoi(in.account.database); err != nil || n < 0 {
			return bad("has database %q, which is not a number", in.account.database)
		}
	case in.Engine != "redis" && (in.account.user == "" || in.account.database == ""):
		return bad("names no user or no database")
	}
	return nil
}

// readPlace reads the host or the socket.
func (in *instance) readPlace(u *url.URL) error {
	in.host = u.Hostname()
	if u.Scheme == "unix" {
		in.host, in.socket, in.account.database = "", u.Path, ""
	}
	for key, values := range u.Query() {
		value := values[len(values)-1]
		switch {
		case key == "socket" && in.Engine != "postgresql":
			in.host, in.socket = "", value
		case key == "host" && in.Engine == "postgresql" && strings.HasPrefix(value, "/"):
			in.host, in.socket = "", filepath.Join(value, ".s.PGSQL."+strconv.Itoa(in.port))
		case key == "db" && in.Engine == "redis":
			in.account.database = value
		default:
			return fmt.Errorf("has the option %q, which is not known here", key)
		}
	}
	if in.socket != "" && !filepath.IsAbs(in.socket) {
		return fmt.Errorf("names the socket %q, which is no absolute path", in.socket)
	}
	return nil
}

// place is where the server listens, as net.Dial wants it.
func (in *instance) place() (network, address string) {
	if in.host == "" {
		return "unix", in.socket
	}
	return "tcp", net.JoinHostPort(in.host, strconv.Itoa(in.port))
}

// hide takes the passwords of databases that exist out of an error.
func (r *run) hide(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, in := range r.existing {
		// A shorter one says nothing where it stands by chance, and would take whole words apart.
		if p := in.account.password; len(p) > 2 {
			for _, form := range []string{p, strings.Trim(strconv.Quote(p), `"`), url.QueryEscape(p), url.PathEscape(p)} {
				text = strings.ReplaceAll(text, form, "xxxxx")
			}
		}
	}
	if text == err.Error() {
		return err
	}
	return &hidden{text, err}
}

// hidden is an error with another text.
type hidden struct {
	text string
	err  error
}

func (h *hidden) Error() string { return h.text }
func (h *hidden) Unwrap() error { return h.err }
