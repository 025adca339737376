package recognise

import (
	"testing"

	"bulkhead/internal/linux/procfs"
)

func TestOrdinary(t *testing.T) {
	for exe, want := range map[string]bool{
		"": false, "/usr/bin/true": true, "/usr/bin/vim": true, "/opt/app/worker-7": true,
		"/usr/sbin/mariadbd": false, "/usr/sbin/mysqld-8.0.36": false, "/usr/lib/postgresql/15/bin/postgres": false,
		"/usr/bin/redis-server": false,
		"/usr/bin/mysqldump":    false, "/usr/bin/perl": false, "/usr/bin/python3.11": false, "/usr/bin/dash": false,
	} {
		if got := Ordinary(exe); got != want {
			t.Errorf("%q: %t", exe, got)
		}
	}
}

func TestMayServe(t *testing.T) {
	for _, test := range []struct {
		exe  string
		args []string
		want bool
	}{
		{"/usr/sbin/mariadbd", []string{"/usr/sbin/mariadbd"}, true},
		{"/usr/lib/postgresql/15/bin/postgres", []string{"/usr/lib/postgresql/15/bin/postgres", "-D", "/d"}, true},
		{"/usr/bin/vim", []string{"mysqld"}, false},
		{"", []string{"anything"}, true},
	} {
		if got := MayServe(&procfs.Process{Exe: test.exe, Args: test.args}); got != test.want {
			t.Errorf("%q %q: %t", test.exe, test.args, got)
		}
	}
}
