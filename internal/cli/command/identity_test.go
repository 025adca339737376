package command

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"bulkhead/internal/api"
)

// Users and groups that are in no file, as those of LDAP and SSSD, can be given by their numbers.
func TestIdentity(t *testing.T) {
	for _, c := range []struct {
		user, group string
		want        Identity
		fails       string
	}{
		{"", "", Identity{}, ""},
		{"4123456", "4123457", Identity{true, 4123456, 4123457, []int{4123457}}, ""},
		{"", "4123457", Identity{true, os.Getuid(), 4123457, []int{4123457}}, ""},
		{"4123456", "", Identity{}, "its group is not known"},
		{"no-such-user", "", Identity{}, `no user "no-such-user" in /etc/passwd`},
		{"4294967295", "1", Identity{}, "no user"},
		{"-1", "1", Identity{}, "no user"},
		{"", "4294967295", Identity{}, "no group"},
		{"", "no-such-group", Identity{}, `no group "no-such-group" in /etc/group`},
	} {
		got, err := As(c.user, c.group)
		if c.fails != "" {
			if api.CodeOf(err) != api.CodeFailed || !strings.Contains(err.Error(), c.fails) ||
				!strings.Contains(api.HintOf(err), "`") {
				t.Errorf("%s:%s: %v, hint %q", c.user, c.group, err, api.HintOf(err))
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:%s: %+v, %v; want %+v", c.user, c.group, got, err, c.want)
		}
	}
	for _, name := range []string{"root", "0"} {
		got, err := As(name, "")
		if err != nil || !got.set || got.uid != 0 || got.gid != 0 || len(got.groups) == 0 {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
