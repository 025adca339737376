package verify

import (
	"bulkhead/internal/knob"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"cmp"
	"fmt"
	"strings"
)

// networkLimit says what the kernel holds of a limit on an interface.
func (v *Snapshot) networkLimit(group string, s policy.Setting) Limit {
	l := Limit{Key: s.Key, On: s.On, Asked: s.Value.String(), From: s.From, File: s.Dev}
	if s.On != s.Dev && s.Dev != "" {
		l.On = s.On + " (" + s.Dev + ")"
	}
	rate, limited := s.Value.(policy.BitRate)
	if !limited {
		l.OK, l.InForce = true, "no limit"
		return l
	}
	held, ok := v.held(group, s)
	if !ok {
		l.Reason = "nothing on the interface holds it"
	} else {
		has := held.Max
		if strings.HasSuffix(string(s.Key), ".min") {
			has = held.Min
		}
		asked := tc.Rate(rate)
		l.InForce = policy.BitRate(has).String()
		l.OK = has.BytesPerSecond() == asked.BytesPerSecond() || has > asked && strings.HasSuffix(string(s.Key), ".min")
		if held.Policed {
			l.File += ", policed"
		}
	}
	if why := v.networkDrift(group, s); why != "" {
		l.OK, l.Reason = false, cmp.Or(l.Reason, "not as it should be: "+why)
	}
	for _, r := range v.Plan.Refusals {
		if r.Group == group && s.Dev != "" && r.Device == s.Dev {
			l.OK, l.Reason = false, r.Reason
		}
	}
	return l
}

// networkDrift says what is not as the policy has it of what holds a limit on an interface.
func (v *Snapshot) networkDrift(group string, s policy.Setting) string {
	for _, step := range v.Plan.Steps {
		switch {
		case step.Kind == request.Kind && (step.Group == group ||
			step.Group == layout.RootGroup && concerns(step, s.Dev)):
			return step.New + " would put it right"
		case step.File().Name == knob.FileClassID &&
			strings.HasPrefix(string(s.Key), "network.egress") &&
			(group == layout.RootGroup || step.Group == group || strings.HasPrefix(step.Group, group+"/")):
			return fmt.Sprintf("%s of %s is %s, and packets are told by %s", knob.FileClassID, step.Dir(),
				knob.ClassID(step.Old), knob.ClassID(step.New))
		}
	}
	return ""
}

// held is what the kernel holds for a group in the direction of a limit.
func (v *Snapshot) held(group string, s policy.Setting) (held netshape.Held, ok bool) {
	if v.Network == nil {
		return held, false
	}
	slot, numbered := v.Network.Slots[group]
	direction := netshape.Egress
	if strings.HasPrefix(string(s.Key), "network.ingress") {
		direction = netshape.Ingress
	}
	for _, d := range v.Network.Devices {
		if d.State.Device.Name == s.Dev && numbered {
			return d.State.Held(slot, direction)
		}
	}
	return held, false
}

// concerns says whether a step changes an interface, or the virtual NIC that serves it.
func concerns(step plan.Step, device string) bool {
	c, _, err := request.Parse(step.Change)
	return err == nil && (c.Device == device || c.For == device)
}
