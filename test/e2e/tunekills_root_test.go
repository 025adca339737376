//go:build root

package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// small are rules of the site that find two sysctls of the network wanting.
const small = `version: 1
rules:
  - {id: SITE-02, title: A first one, ok: host.memory < 0, want: less, value: '"600"', severity: medium,
     change: {class: sysctl, key: net.core.somaxconn}, means: "{host.memory}", why: To be killed., source: "-",
     checked: 2026-11}
  - {id: SITE-03, title: A second one, ok: host.memory < 0, want: more, value: '"4096 65536 4194304"', severity: medium,
     change: {class: sysctl, key: net.ipv4.tcp_wmem}, means: "{host.memory}", why: To be killed., source: "-",
     checked: 2026-11}
`

// tune apply and tune rollback are killed at any system call that writes. Whoever comes next undoes what was begun, and
// after a tune rollback the settings are as they were, and so is each file of /etc with its mode and its owner. KILLS
// and SEED are those of TestKilledAtSystemCalls, with a fifth of the kills.
func TestTuneKilledAtSystemCalls(t *testing.T) {
	kills, err := strconv.Atoi(strings.Replace(cmp.Or(os.Getenv("KILLS"), "30"), "all", "1000", 1))
	if err != nil {
		t.Fatal(err)
	}
	kills /= 5
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("SEED"), fmt.Sprint(time.Now().UnixNano())), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("SEED=%d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	a, s := newApart(t), newSite(t)
	s.write("")
	if out, err := a.inside(s.command("apply")).CombinedOutput(); err != nil {
		t.Fatalf("apply: %v\n%s", err, out)
	}
	a.sh(`mkdir -p /etc/bulkhead/advise.d; printf %s "$0" >/etc/bulkhead/advise.d/site.yaml`, small)
	host := func() string {
		return a.sh(`cat /proc/sys/net/core/somaxconn /proc/sys/net/ipv4/tcp_wmem
			find /etc -path /etc/ssl -prune -o -printf '%p %y %m %U:%G\n' | sort
			find /etc/sysctl.d -type f -exec sha256sum {} + | sort`)
	}
	before := host()
	apply, back := []string{"tune", "apply", "SITE-02", "SITE-03"}, []string{"tune", "rollback"}
	if out, err := a.inside(s.command(apply...)).CombinedOutput(); err != nil || host() == before {
		t.Fatalf("tune apply: %v\n%s", err, out)
	}
	if out, err := a.inside(s.command(back...)).CombinedOutput(); err != nil || host() != before {
		t.Fatalf("tune rollback: %v\n%s", err, out)
	}
	calls := slices.Sorted(maps.Keys(writingCalls))
	hit, missed := 0, 0
	for i := 0; hit < kills && missed < 10*kills; i++ {
		verb := apply
		if i%2 == 1 {
			verb = back
			if out, err := a.inside(s.command(apply...)).CombinedOutput(); err != nil {
				t.Fatalf("tune apply: %v\n%s", err, out)
			}
		}
		call := calls[r.IntN(len(calls))]
		nth := 1 + r.IntN(writingCalls[call])
		cmd := killed(a.inside(s.command(verb...)), call, nth)
		out, _ := cmd.CombinedOutput() // it is killed, or comes to its end
		if strings.Contains(string(out), "goroutine ") {
			t.Fatalf("bulkhead %q panicked:\n%s", verb, out)
		}
		if cmd.ProcessState.ExitCode() < 0 {
			hit++
		} else {
			missed++
		}
		var said []string
		for range 2 { // the first one undoes what was begun
			out, _ := a.inside(s.command(back...)).CombinedOutput()
			said = append(said, string(out))
		}
		if now := host(); now != before {
			t.Fatalf("%q killed at %s %d: the host is\n%s\nand was\n%s\nrollbacks said %q", verb, call, nth, now,
				before, said)
		}
	}
	t.Logf("%d were killed, %d came to their ends before", hit, missed)
	if hit < kills {
		t.Errorf("%d of %d were killed", hit, kills)
	}
}
