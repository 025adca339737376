package verify

import (
	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"context"
	"fmt"
	"time"
)

// Plan is what a probe will do.
type Plan struct {
	Loads []Measurement `json:"loads"`
	Takes time.Duration `json:"takes_ns"` // about
	Bytes int64         `json:"bytes"`    // read, written and sent, at most
	// Left are the limits that it only reads back, and why.
	Left []Unmeasured `json:"only_read_back,omitempty"`
}

// Measurement is one measurement.
type Measurement struct {
	Group  string        `json:"group"`
	Key    policy.Key    `json:"key"`
	On     string        `json:"on,omitempty"` // as the policy names it
	Device string        `json:"device,omitempty"`
	What   string        `json:"what"`  // for people
	Where  string        `json:"where"` // "beside" or "inside" the group
	Takes  time.Duration `json:"takes_ns"`
	Bytes  int64         `json:"bytes,omitempty"` // at most

	run func(ctx context.Context) []Result
}

// Unmeasured is a limit that is only read back.
type Unmeasured struct {
	Group string     `json:"group"`
	Key   policy.Key `json:"key"`
	On    string     `json:"on,omitempty"`
	Why   string     `json:"why"`
}

// Result is one limit measured, or read back alone.
type Result struct {
	Group  string     `json:"group"`
	Key    policy.Key `json:"key"`
	On     string     `json:"on,omitempty"`
	Device string     `json:"device,omitempty"`
	// How it was measured: "alone", "contended", "direct", "buffered", "to the limit", "read back", …
	How      string `json:"how"`
	Asked    string `json:"asked"`
	Measured string `json:"measured,omitempty"`
	// Difference is by how much a part of what was asked more was measured, or for a share how much more of the whole.
	Difference *float64      `json:"difference,omitempty"`
	Verdict    probe.Verdict `json:"verdict"`
	Reason     string        `json:"reason,omitempty"`
	Took       time.Duration `json:"took_ns,omitempty"`
}

// failed is the row of a measurement that did not come about.
func (r Result) failed(err error) Result {
	r.Verdict, r.Reason = probe.NotMeasured, err.Error()
	return r
}

// judged fills in what a rate came to. why says why, of one that is not held.
func (r Result) judged(rate probe.Rate, measured string, took time.Duration, why func() string) Result {
	d := rate.Difference()
	r.Verdict, r.Measured, r.Difference, r.Took = rate.Judge(), measured, &d, took
	switch {
	case r.Verdict.Fault() && why != nil:
		r.Reason = why()
	case r.Verdict == probe.NotReached:
		r.Reason = fmt.Sprintf("the host gave it only %s while it was measured; what is above was not tried", measured)
	}
	return r
}

// contended judges a weight by loads that contend.
func contended(r Result, why func() string, contend func(alike bool) (probe.Contest, error)) Result {
	c, err := probe.Decide(contend, func() bool { return why() != whyUnknown })
	if err != nil {
		return r.failed(err)
	}
	if r = r.shared(c.Share, c.Took, why); c.Idle != "" {
		r.Verdict, r.Reason = probe.NotDecided, c.Idle
	}
	return r
}

// shared fills in what a share came to.
func (r Result) shared(s probe.Share, took time.Duration, why func() string) Result {
	d := s.Measured - s.Asked
	r.Asked = fmt.Sprintf("%s: %.1f %% beside a rival", r.Asked, 100*s.Asked)
	r.Verdict, r.Measured, r.Difference, r.Took = s.Judge(), fmt.Sprintf("%.1f %%", 100*s.Measured), &d, took
	switch {
	case r.Verdict.Fault():
		r.Reason = why()
	case r.Verdict == probe.NotDecided:
		r.Reason = fmt.Sprintf("the group's load got %.1f %% of what the two got even beside one of the same weight, "+
			"where 50 %% is due: so other work on the host can be what shifts the share, and not the weight; "+
			"measure again when the host is less busy, or with a longer --span", 100*s.Alike)
	}
	return r
}
