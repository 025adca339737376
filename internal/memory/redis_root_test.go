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

// A Redis whose memory is in transparent huge pages, of 2 MiB, is seen to use them by its maps, and it says that it has
// not switched them off; one whose allocator asks for none is seen to use none. The host's settings stay as they are.
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
	for _, asks := range []string{"always", "never"} {
		if err := in.Start(t.Context(), func(user string, args []string) []string {
			// Its allocator asks for them, or not to have any (madvise(2)).
			return slices.Concat([]string{"env", "MALLOC_CONF=thp:" + asks, "setpriv", "--reuid", user, "--regid", user,
				"--init-groups"}, args, []string{"--disable-thp", "no"})
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
		if err != nil || said["disable-thp"] != "no" {
			t.Errorf("it says %v, %v", said, err)
		}
		i, err := Read(t.Context(), h, facts, m.THP, instanceOf(t, h, in))
		if err != nil {
			t.Fatal(err)
		}
		huge := i.Pages[0].Transparent
		t.Logf("asks for %s: %d of %d MiB in transparent huge pages", asks, huge/mib, i.Pages[0].Private/mib)
		if asks == "always" && (huge < filled/2 || huge > filled*2) || asks == "never" && huge > 0 {
			t.Errorf("asks for %s: %d bytes in transparent huge pages", asks, huge)
		}
		if i.THP != m.THP {
			t.Errorf("it is said to have %s, and the host has %s", i.THP, m.THP)
		}
		_ = in.Stop()
	}
}
