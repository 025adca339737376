package users_test

import (
	"os/user"
	"strconv"
	"testing"

	"bulkhead/internal/host"
	"bulkhead/internal/host/hosttest"
)

func TestUserNames(t *testing.T) {
	h := hosttest.Load(t, "debian12")
	for uid, want := range map[int]string{0: "root", 112: "postgres", 4242: "4242"} {
		if got := h.Users.UserName(uid); got != want {
			t.Errorf("user %d is %q, want %q", uid, got, want)
		}
	}
	for gid, want := range map[int]string{113: "ssl-cert", 4242: "4242"} {
		if got := h.Users.GroupName(gid); got != want {
			t.Errorf("group %d is %q, want %q", gid, got, want)
		}
	}
	for name, want := range map[string]int{"postgres": 112, "admin": 0, "4242": 4242, "0": 0} {
		if got, found := h.Users.UserID(name); !found || got != want {
			t.Errorf("user %q is %d, %t, want %d", name, got, found, want)
		}
	}
	for _, name := range []string{"nobodyhere", "", "-1", "broken", "+nisuser", "4294967296"} {
		if got, found := h.Users.UserID(name); found {
			t.Errorf("user %q is %d", name, got)
		}
	}
	if got, found := h.Users.GroupID("ssl-cert"); !found || got != 113 {
		t.Errorf("group ssl-cert is %d, %t", got, found)
	}
	if got := hosttest.Load(t, "container").Users.UserName(0); got != "0" {
		t.Errorf("without /etc/passwd user 0 is %q", got)
	}
}

func TestUserNamesOfThisMachine(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	h := host.New("/")
	uid, err := strconv.Atoi(me.Uid)
	if err != nil {
		t.Fatal(err)
	}
	if got := h.Users.UserName(uid); got != me.Username {
		t.Errorf("user %d is %q, want %q", uid, got, me.Username)
	}
	if got, found := h.Users.UserID(me.Username); !found || got != uid {
		t.Errorf("user %q is %d, %t, want %d", me.Username, got, found, uid)
	}
}
