package control

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bulkhead/internal/api"
)

// Whatever an owner asks for (other groups, other names of a limit, units, devices, paths): its group stays within its
// bounds, and no other group changes.
func TestOwnersDrawnRequests(t *testing.T) {
	m := newMachine(t, "252")
	m.apply(owned)
	_, err := m.do(api.Request{Verb: "set", By: "shop", Caller: shop(), Assign: []string{"shop:tasks=199"}})
	m.must(err)
	files := []string{"cpu.max", "cpu.weight", "memory.max", "memory.high", "memory.low", "pids.max"}
	others := func() (text string) {
		for _, dir := range []string{"/", "/bulkhead.team.slice", "/bulkhead.strict.slice", "/system.slice"} {
			for _, file := range files {
				got, err := m.kernel.Read(at(dir).File(file))
				text += fmt.Sprintln(dir, file, got, err)
			}
		}
		return text
	}
	before := others()
	keys := strings.Fields(`cpu.limit cpu.limit memory.max tasks tasks cpu.weight cpu.cpus cpu.numa memory.max
		memory.high memory.min pids.max cpu.max memory.limit_in_bytes TasksMax CPUQuota io.weight io.read.bandwidth
		oom_score_adj network.out`)
	values := strings.Fields(`0 1 2 2.0000001 0.5 0.49 -1 max none unlimited infinity 100% 10% 1e9 0x10 5MB/s 200 201
		256MiB 255MiB 8GiB 8.1GiB 8589934592 8589934593 1TB 200000us 2cpus NaN +Inf ２`)
	groups := strings.Fields(`shop shop shop shop shop shop shop shop team strict / shop/../strict Shop shop.slice
		bulkhead.strict.slice *`)
	paths := []string{"", "", "", "/etc/passwd", "/dev/shm", "/dev/fd/0", "/dev/../etc", "8:0", "vg:data", "eth0"}
	bound := func(r *rapid.T, file string, low, high float64) {
		text, err := m.kernel.Read(at("/bulkhead.shop.slice").File(file))
		if err != nil {
			r.Fatalf("%s: %v", file, err)
		}
		words := strings.Fields(text)
		got, err := strconv.ParseFloat(words[0], 64)
		if len(words) == 2 {
			period, _ := strconv.ParseFloat(words[1], 64)
			got /= period
		}
		if err != nil || got < low || got > high {
			r.Fatalf("%s of the group is %q, bounds are %g to %g", file, text, low, high)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		var q api.Request
		for range 4 {
			group := rapid.SampledFrom(groups).Draw(r, "group")
			number := rapid.StringMatching(`[0-9.]{1,6}(MiB|GiB|%|ms)?`)
			value := rapid.OneOf(rapid.SampledFrom(values), number).Draw(r, "value")
			q = api.Request{
				Verb: rapid.SampledFrom([]string{"set", "set", "set", "set", "unset"}).Draw(r, "verb"),
				By:   "shop", Caller: shop(), On: rapid.SampledFrom(paths).Draw(r, "on"),
				Assign: []string{group + ":" + rapid.SampledFrom(keys).Draw(r, "key")},
			}
			if q.Verb == "set" {
				q.Assign[0] += "=" + value
			}
			_, _ = m.do(q)
			bound(r, "cpu.max", 0.5, 2)
			bound(r, "memory.max", 256<<20, 8<<30)
			bound(r, "pids.max", 1, 200)
			if now := others(); now != before {
				r.Fatalf("%v on %q changed another group:\n%s", q.Assign, q.On, differs(now, before))
			}
		}
	})
	m.release()
}
