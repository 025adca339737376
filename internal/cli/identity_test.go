package cli

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"bulkhead/internal/control"
)

// Users and groups that are in no file, as those of LDAP and SSSD, can be given by their numbers.
func TestIdentity(t *testing.T) {
	for _, c := range []struct {
		flags runFlags
		want  identity
		fails string
	}{
		{runFlags{}, identity{}, ""},
		{runFlags{user: "4123456", group: "4123457"}, identity{true, 4123456, 4123457, []int{4123457}}, ""},
		{runFlags{group: "4123457"}, identity{true, os.Getuid(), 4123457, []int{4123457}}, ""},
		{runFlags{user: "4123456"}, identity{}, "its group is not known"},
		{runFlags{user: "no-such-user"}, identity{}, `no user "no-such-user" in /etc/passwd`},
		{runFlags{user: "4294967295", group: "1"}, identity{}, "no user"},
		{runFlags{user: "-1", group: "1"}, identity{}, "no user"},
		{runFlags{group: "4294967295"}, identity{}, "no group"},
		{runFlags{group: "no-such-group"}, identity{}, `no group "no-such-group" in /etc/group`},
	} {
		got, err := c.flags.identity()
		if c.fails != "" {
			if control.CodeOf(err) != control.CodeUsage || !strings.Contains(err.Error(), c.fails) || !strings.Contains(control.HintOf(err), "`") {
				t.Errorf("%+v: %v, hint %q", c.flags, err, control.HintOf(err))
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v: %+v, %v; want %+v", c.flags, got, err, c.want)
		}
	}
	for _, name := range []string{"root", "0"} {
		got, err := runFlags{user: name}.identity()
		if err != nil || !got.set || got.uid != 0 || got.gid != 0 || len(got.groups) == 0 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
