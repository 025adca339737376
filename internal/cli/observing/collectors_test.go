package observing

import (
	"bytes"
	"testing"
	"time"

	"bulkhead/internal/observe"
)

func TestShowCollectors(t *testing.T) {
	var out bytes.Buffer
	s := Session{Out: &out, Print: func(_ any, text func()) error { text(); return nil }}
	until, tomorrow := time.Date(2026, 11, 25, 2, 10, 0, 0, time.Local), time.Date(2026, 11, 26, 0, 0, 1, 0, time.Local)
	err := s.show([]observe.Reading{
		{Name: "cpu", On: true, Every: 5 * time.Second, Age: 1234 * time.Millisecond, Took: 2345678, Used: 1234567,
			Help: "CPU time"},
		{Name: "io", On: true, Every: 10 * time.Second, Slower: 2, Skipped: 3, Waiting: 61 * time.Second,
			Error: "no such disk", Help: "disks"},
		{Name: "network", Every: 10 * time.Second, Until: &until, Skipped: 1, Help: "traffic"},
		{Name: "uname", On: true, Every: time.Minute, Until: &tomorrow, Help: "kernel"},
		{Name: "blame", On: true, Every: time.Minute, Remark: "nothing is counted: no BTF", Help: "whom"},
		{Name: "zfs", Every: time.Minute, Remark: "of before it was switched off", Help: "pools"},
	}, until.Add(-2*time.Hour))
	const want = `COLLECTOR  STATE                         EVERY  LAST      TOOK    CPU     WHAT IT READS
cpu        on                            5s     1.2s ago  2.35ms  1.23ms  CPU time
io         on                            10s    -         -       -       disks
network    off until 02:10:00            10s    -         -       -       traffic
uname      on until 2026-11-26 00:00:01  1m0s   -         -       -       kernel
blame      on                            1m0s   -         -       -       whom
zfs        off                           1m0s   -         -       -       pools

io: a reading has been under way for 1m1s; until it ends, the next ones are skipped
io: 3 readings were skipped because the one before had not ended
io: it uses more CPU than its budget, and reads 2 times less often than it should
io: the last reading failed: no such disk
blame: nothing is counted: no BTF
`
	if got := out.String(); err != nil || got != want {
		t.Errorf("%v, shown:\n%s\nwant:\n%s", err, got, want)
	}
}
