package usage

import (
	"cmp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/dblogin"
)

// LoginsHelp is the help of the flag that Logins reads.
const LoginsHelp = "ask a server, `INSTANCE=@FILE`: a DSN in a file that only you may read, or INSTANCE=DSN " +
	"without a password"

// Logins reads how to log in to instances. A password on a command line is for all to read, and so it is refused.
func Logins(cmd *cobra.Command, given []string) (map[string]*dblogin.Login, error) {
	logins := map[string]*dblogin.Login{}
	for _, one := range given {
		name, text, found := strings.Cut(one, "=")
		if !found || strings.Contains(name, ":") { // what was given may hold a password, and is not repeated
			return nil, Errorf(cmd, "--dsn is written INSTANCE=@FILE; `bulkhead discover` lists instances")
		}
		dsn, err := dblogin.Secret(text)
		if err != nil {
			return nil, Errorf(cmd, "%v", err)
		}
		l, err := dblogin.Parse(dsn)
		if err != nil {
			return nil, Errorf(cmd, "the DSN of %s: %v", name, err)
		}
		if l.Password != "" && dsn == text {
			return nil, Errorf(cmd, "the DSN of %s has a password, which everybody sees on a command line: "+
				"write the DSN into a file of mode 0600 and give --dsn %s=@FILE", name, name)
		}
		logins[name] = l
	}
	return logins, nil
}

// Instances is the error of an instance that is named and does not run here, by the names of those that do, and of
// logins that are for none of them, or for another one. "" is no instance that is named.
func Instances(cmd *cobra.Command, names []string, instance string, logins map[string]*dblogin.Login) error {
	for name := range logins {
		if !slices.Contains(names, name) {
			return Errorf(cmd, "--dsn: no instance %q runs here: %s", name, running(names))
		}
	}
	if instance == "" {
		return nil
	}
	if !slices.Contains(names, instance) {
		return NoInstance(cmd, names, instance)
	}
	for name := range logins {
		if name != instance {
			return Errorf(cmd, "--dsn is for %s, but the instance is %s", name, instance)
		}
	}
	return nil
}

// NoInstance is the error of an instance that does not run here, by the names of those that do.
func NoInstance(cmd *cobra.Command, names []string, instance string) error {
	return Errorf(cmd, "no instance %q runs here: %s", instance, running(names))
}

func running(names []string) string { return cmp.Or(strings.Join(names, ", "), "none does") }
