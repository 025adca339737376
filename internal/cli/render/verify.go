package render

import (
	"io"
	"math"
	"time"

	"bulkhead/internal/policy"
	"bulkhead/internal/probe"
	"bulkhead/internal/verify"
)

// Verified prints each limit as it was read back from the kernel.
func Verified(out io.Writer, all []verify.Reading) {
	bad, void := 0, 0
	w := newTable(out, "group", "limit", "asked", "in force", "file", "verdict")
	for _, v := range all {
		switch {
		case v.Void:
			void++
		case !v.OK:
			bad++
		}
		Printf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", groupName(v.Group, v.Key), limitName(v.Limit),
			asked(v.Limit), dash(v.InForce), dash(v.File), verdict(v.Limit))
	}
	if len(all) > 0 {
		w.flush()
	}
	for _, v := range all {
		if v.Reason != "" {
			Printf(out, "%s %s: %s\n", groupName(v.Group, v.Key), limitName(v.Limit), v.Reason)
		}
	}
	Printf(out, "%s read back, %d not enforced", Count(len(all), "limit", "limits"), bad)
	if void > 0 {
		Printf(out, ", %d void", void)
	}
	Println(out)
}

// ProbePlan prints what a probe measures, for how long and with how much.
func ProbePlan(out io.Writer, pl verify.Plan, dryRun bool) {
	Printf(out, "%s, about %s in all; at most %s read, written and sent\n",
		Count(len(pl.Loads), "measurement", "measurements"), pl.Takes.Round(time.Second/10),
		policy.Bytes(pl.Bytes).Human())
	for _, l := range pl.Loads {
		on := ""
		if l.Device != "" {
			on = " (" + l.Device + ")"
		}
		Printf(out, "  %s %s%s, %s the group: %s, for %s\n", l.Group, keyName(l.Key, l.On), on, l.Where, l.What,
			l.Takes.Round(time.Second/10))
	}
	for _, l := range pl.Left {
		Printf(out, "  %s %s is only read back: %s\n", groupName(l.Group, l.Key), keyName(l.Key, l.On), l.Why)
	}
	if dryRun {
		Println(out, "dry run: nothing was started")
	}
}

// Probed prints what each limit was measured to enforce.
func Probed(out io.Writer, all []verify.Result) {
	faults, measured, undecided := 0, 0, 0
	for _, r := range all {
		if r.Verdict.Fault() {
			faults++
		}
		if r.How != "read back" && r.Verdict != probe.NotMeasured {
			measured++
		}
		if r.Verdict == probe.NotDecided {
			undecided++
		}
	}
	w := newTable(out, "group", "limit", "how", "asked", "measured", "difference", "verdict")
	for _, r := range all {
		difference := math.NaN()
		if r.Difference != nil {
			difference = *r.Difference
		}
		Printf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", groupName(r.Group, r.Key), keyName(r.Key, r.On), r.How,
			r.Asked, dash(r.Measured), probe.Percent(difference), r.Verdict)
	}
	w.flush()
	for _, r := range all {
		if r.Reason != "" {
			Printf(out, "%s %s, %s: %s\n", groupName(r.Group, r.Key), keyName(r.Key, r.On), r.How, r.Reason)
		}
	}
	Printf(out, "%s, %d not enforced", Count(measured, "limit measured", "limits measured"), faults)
	if undecided > 0 {
		Printf(out, ", %d not decided", undecided)
	}
	Println(out)
}
