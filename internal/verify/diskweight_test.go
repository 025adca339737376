package verify

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/probe"
)

// A weight of a disk is called not enforced only where the loads waited for the disk, and two of the same weight shared
// alike.
func TestJudgementOfADiskWeight(t *testing.T) {
	errBroken := errors.New("no load")
	for name, test := range map[string]struct {
		broken, why    string
		measured, same float64
		queued         float64
		err            map[contention]error
		want           probe.Verdict
		reason         string
		how            []contention
	}{
		"held": {measured: 0.9, queued: 8, want: probe.Held, how: []contention{byWeight}},
		"the weight does not count": {why: whyUnknown, measured: 0.5, same: 0.5, queued: 7.5, want: probe.NotEnforced,
			reason: whyUnknown, how: []contention{byWeight, alike}},
		"the host shifts shares": {why: whyUnknown, measured: 0.5, same: 0.1, queued: 7.5, want: probe.NotDecided,
			reason: "10.0 % of what the two got even beside one of the same weight",
			how:    []contention{byWeight, alike}},
		"the disk is not busy": {why: whyUnknown, measured: 0.5, same: 0.5, queued: 2.25, want: probe.NotDecided,
			reason: "of the 8 requests that the two loads had at a time only 2.2", how: []contention{byWeight}},
		"somebody changed the file": {why: "the kernel holds 100", measured: 0.5, queued: 8, want: probe.NotEnforced,
			reason: "the kernel holds 100", how: []contention{byWeight}},
		"nothing weighs": {broken: "the scheduler is none", why: whyUnknown, measured: 0.5, queued: 8,
			want: probe.NotEnforced, reason: "the scheduler is none", how: []contention{weightless}},
		"no load": {err: map[contention]error{byWeight: errBroken}, want: probe.NotMeasured, reason: "no load",
			how: []contention{byWeight}},
		"no second load": {why: whyUnknown, measured: 0.5, queued: 8, err: map[contention]error{alike: errBroken},
			want: probe.NotMeasured, reason: "it got 50.0 % instead of 90.9 %", how: []contention{byWeight, alike}},
	} {
		t.Run(name, func(t *testing.T) {
			var how []contention
			r := weighed(Result{Asked: "500"}, test.broken, func() string { return test.why },
				func(h contention) (contest, error) {
					how = append(how, h)
					c := contest{took: time.Second, queued: test.queued}
					c.Asked, c.Measured, c.Tolerance = probe.ShareOf(10, 1), test.measured, probe.ToleranceDisk
					if h == alike {
						c.Asked, c.Measured = 0.5, test.same
					}
					return c, test.err[h]
				})
			if r.Verdict != test.want || !strings.Contains(r.Reason, test.reason) ||
				(test.reason == "") != (r.Reason == "") {
				t.Errorf("%s: %s", r.Verdict, r.Reason)
			}
			if !slices.Equal(how, test.how) {
				t.Errorf("contended %v, want %v", how, test.how)
			}
		})
	}
}

// Requests that the kernel has joined or split count as they were made.
func TestQueuedRequests(t *testing.T) {
	at := func(requests, bytes int64, waited time.Duration) blockdev.Reads {
		return blockdev.Reads{Requests: requests, Bytes: bytes, Waited: waited}
	}
	for _, test := range []struct {
		now  blockdev.Reads
		want string
	}{
		{at(1100, 1100*contendSize, 16*time.Second), "8.0"}, // 8 at a time over 2 s
		{at(1050, 1100*contendSize, 8*time.Second), "8.0"},  // two made one each
		{at(1200, 1100*contendSize, 32*time.Second), "8.0"}, // one made two each
		{at(1100, 1100*contendSize, 2*time.Second), "1.0"},
		{at(1000, 1000*contendSize, 0), "0.0"},
	} {
		got := fmt.Sprintf("%.1f", queued(at(1000, 1000*contendSize, 0), test.now, 2*time.Second))
		if got != test.want {
			t.Errorf("%+v: %s, want %s", test.now, got, test.want)
		}
	}
}
