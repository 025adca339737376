//go:build root

package memory

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	children "bulkhead/internal/bench/process"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/host"
)

// A Redis whose memory is in transparent huge pages, of 2 MiB, is seen to use them by its maps, where it says that it
// has not switched them off; and one that has (its default since 6.2) is seen to use none.
func TestLiveRedisRoot(t *testing.T) {
	h := host.New("/")
	facts, err := h.Facts()
	if err != nil {
		t.Fatal(err)
	}
	m, err := h.Memory(facts)
	if err != nil {
		t.Fatal(err)
	}
	if m.THP != "always" && m.THP != "madvise" {
		t.Skipf("transparent huge pages are %q here", m.THP)
	}
	n := children.NewSupervisor()
	t.Cleanup(func() { _ = n.Close() })
	in := install(t, n, openDir(t), "redis", 0)
	const filled = 64 * mib
	for _, disabled := range []string{"no", "yes"} {
		if err := in.Start(t.Context(), func(user string, args []string) []string {
			// Its allocator asks for them (madvise(2)), whatever the host has.
			return slices.Concat([]string{"env", "MALLOC_CONF=thp:always", "setpriv", "--reuid", user, "--regid", user,
				"--init-groups"}, args, []string{"--disable-thp", disabled})
		}); err != nil {
			t.Fatal(err)
		}
		login, err := dblogin.Parse("unix://" + in.Socket)
		if err != nil {
			t.Fatal(err)
		}
		c := login.OpenRedis()
		value := strings.Repeat("x", mib)
		for i := range filled / mib {
			if err := c.Set(t.Context(), fmt.Sprint("key", i), value, 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		said, err := c.ConfigGet(t.Context(), "disable-thp").Result()
		_ = c.Close()
		if err != nil || said["disable-thp"] != disabled {
			t.Errorf("it says %v, %v", said, err)
		}
		i, err := Read(t.Context(), h, facts, m.THP, instanceOf(t, h, in))
		if err != nil {
			t.Fatal(err)
		}
		if huge := i.Pages[0].Transparent; huge > filled*3/2 || (huge >= filled/2) != (disabled == "no") {
			t.Errorf("disable-thp %s: %d MiB in transparent huge pages", disabled, huge/mib)
		} else {
			t.Logf("disable-thp %s: %d of %d MiB in transparent huge pages", disabled, huge/mib, i.Pages[0].Private/mib)
		}
		if (i.THP == "off") != (disabled == "yes") {
			t.Errorf("disable-thp %s: %s", disabled, i.THP)
		}
		_ = in.Stop()
	}
}
