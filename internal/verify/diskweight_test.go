package verify

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/probe"
)

// A weight is called not enforced only where what the loads contended for was busy, and two of the same weight shared
// it alike.
func TestJudgementOfAWeight(t *testing.T) {
	errNoLoad := errors.New("no load")
	const idle = "the disk was not busy"
	for name, test := range map[string]struct {
		why            string
		measured, same float64
		idle           string
		err            map[bool]error
		want           probe.Verdict
		reason         string
		alike          []bool
	}{
		"held": {measured: 0.9, idle: idle, want: probe.Held, alike: []bool{false}},
		"the weight does not count": {why: whyUnknown, measured: 0.5, same: 0.5, want: probe.NotEnforced,
			reason: whyUnknown, alike: []bool{false, true}},
		"the host shifts shares": {why: whyUnknown, measured: 0.5, same: 0.1, want: probe.NotDecided,
			reason: "10.0 % of what the two got even beside one of the same weight", alike: []bool{false, true}},
		"the disk is not busy": {why: whyUnknown, measured: 0.5, same: 0.5, idle: idle, want: probe.NotDecided,
			reason: idle, alike: []bool{false}},
		"somebody changed the file": {why: "the kernel holds 100", measured: 0.5, idle: idle, want: probe.NotEnforced,
			reason: "the kernel holds 100", alike: []bool{false}},
		"no load": {err: map[bool]error{false: errNoLoad}, want: probe.NotMeasured, reason: "no load",
			alike: []bool{false}},
		"no second load": {why: whyUnknown, measured: 0.5, err: map[bool]error{true: errNoLoad},
			want: probe.NotMeasured, reason: "it got 50.0 % instead of 90.9 %", alike: []bool{false, true}},
	} {
		t.Run(name, func(t *testing.T) {
			var asked []bool
			why := func() string { return test.why }
			r := contended(Result{Asked: "500"}, why, func(alike bool) (probe.Contest, error) {
				asked = append(asked, alike)
				c := probe.Contest{Took: time.Second, Idle: test.idle}
				c.Asked, c.Measured, c.Tolerance = probe.ShareOf(10, 1), test.measured, probe.ToleranceDisk
				if alike {
					c.Measured = test.same
				}
				return c, test.err[alike]
			})
			if r.Verdict != test.want || !strings.Contains(r.Reason, test.reason) ||
				(test.reason == "") != (r.Reason == "") {
				t.Errorf("%s: %s", r.Verdict, r.Reason)
			}
			if !slices.Equal(asked, test.alike) {
				t.Errorf("contended %v, want %v", asked, test.alike)
			}
		})
	}
}
