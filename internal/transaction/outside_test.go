package transaction

import (
	"context"
	"strings"
	"testing"

	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/linux/tunable/sepolicy"
	"bulkhead/internal/linux/tunable/sepolicy/sepolicytest"
)

// A value of any length is written outside of a sandbox, by an order that fits into one argument of a program.
func TestOrderOfAnyLength(t *testing.T) {
	dir := t.TempDir()
	p := sepolicytest.New(t, dir)
	p.Put("srv/db/ibdata1", "")
	c, err := Open(Options{State: t.TempDir(), Root: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.ChangePolicy, c.Labels, c.model = p.Run, p, true
	target := sepolicy.Target("labels /srv/db")
	for _, lines := range []int{0, 5000} {
		value := "system_u:object_r:mysqld_db_t:s0"
		value += strings.Repeat("\nsystem_u:object_r:var_t:s0 \"x\"", lines)
		text, err := c.orderOf(target, value)
		const longestArgument = 128 << 10 // MAX_ARG_STRLEN
		if err != nil || len(text) >= longestArgument {
			t.Fatalf("%d lines: %d bytes, %v", lines, len(text), err)
		}
		clear(p.Labels)
		if err := c.WriteOutside(context.Background(), text); err != nil {
			t.Fatal(err)
		}
		host := sepolicy.Host{Root: sysroot.New(dir), Files: p}
		got, err := sepolicy.Labels{Host: host}.Read(t.Context(), "/srv/db")
		if err != nil || got != "system_u:object_r:mysqld_db_t:s0" {
			t.Errorf("%d lines: %q, %v", lines, got, err)
		}
	}
}
