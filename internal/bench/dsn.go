package bench

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// dsnSchemes are what a DSN may begin with, by engine.
var dsnSchemes = map[string][]string{
	"mariadb": {"mysql", "mariadb"}, "postgresql": {"postgresql", "postgres"}, "redis": {"redis"},
}

// readDSN reads "mysql://user:password@host:port/database".
func (in *instance) readDSN() error {
	bad := func(why string) error {
		return &RequirementError{
			Reason: fmt.Sprintf("the DSN of database %q %s", in.Name, why),
			Hint:   "write " + dsnSchemes[in.Engine][0] + "://user:password@host:port/database",
		}
	}
	u, err := url.Parse(in.DSN)
	if err != nil {
		return bad("is not a URL") // the error would show the password
	}
	known := false
	for _, s := range dsnSchemes[in.Engine] {
		known = known || u.Scheme == s
	}
	switch {
	case !known:
		return bad(fmt.Sprintf("begins with %q, not with %s", u.Scheme, strings.Join(dsnSchemes[in.Engine], " or ")))
	case u.Hostname() == "":
		return bad("names no host")
	}
	in.host, in.port = u.Hostname(), in.engine.port
	if p := u.Port(); p != "" {
		if in.port, err = strconv.Atoi(p); err != nil || in.port < 1 || in.port > 65535 {
			return bad(fmt.Sprintf("has port %q", p))
		}
	}
	in.account = account{user: u.User.Username(), database: strings.TrimPrefix(u.Path, "/")}
	in.account.password, _ = u.User.Password()
	if in.Engine != "redis" && (in.account.user == "" || in.account.database == "") {
		return bad("names no user or no database")
	}
	return nil
}
