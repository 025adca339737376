// Package confined says what the sandbox of a running service forbids the process in it.
//
//	unit := confined.Own()                               // nil where systemd started no service for this process
//	forbidden := unit.Forbidden(sandbox.Settings(needs)) // "CapabilityBoundingSet=CAP_CHOWN CAP_FOWNER"
//
// The process tries for itself what each setting allows (internal/linux/rights), since neither a drop-in nor systemd's
// properties of the unit tell what it was started with. A Unit is safe for concurrent use.
package confined

import (
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/linux/rights"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/systemd/sandbox"
)

// Unit is the service that a process runs in.
type Unit struct {
	Name string // "bulkhead.service"
	// Forbids says whether the process may not do what a setting of section [Service] allows. A setting that it does
	// not know, and what the kernel does not have, is not forbidden.
	Forbids func(setting string) bool
}

// Own is the service that this process runs in; nil where it is in none, or systemd is not PID 1.
func Own() *Unit {
	if name := rights.Service(); name != "" {
		return &Unit{Name: name, Forbids: rights.Forbids}
	}
	return nil
}

// Forbidden are those of the settings that the process lacks. Of no service nothing is forbidden.
func (u *Unit) Forbidden(settings []string) (list []string) {
	if u == nil {
		return nil
	}
	for _, s := range settings {
		if u.Forbids(s) {
			list = append(list, s)
		}
	}
	return list
}

// Parsed are policies that were applied; one that a later version no longer takes is left out.
func Parsed(all ...[]policy.Source) (policies []*policy.Policy) {
	for _, sources := range all {
		if p, err := parse.Policy(sources); err == nil && len(sources) > 0 {
			policies = append(policies, p)
		}
	}
	return policies
}

// Overridden is a policy that asks for an override alone: its text ("a:tasks=50"), and what it is on. One that a later
// version no longer takes asks for nothing.
func Overridden(text, on string) *policy.Policy {
	group, setting, err := parse.Assignment(text, on)
	if err != nil {
		return &policy.Policy{}
	}
	return &policy.Policy{Groups: []*policy.Group{{Path: group, Settings: policy.Settings{setting}}}}
}

// Refusals are what a plan is refused for when a unit forbids its process some of the settings that are needed. File
// is the policy's, "" for the usual one; to is the revision that is gone back to, 0 for none.
func Refusals(unit string, forbidden []string, needs []sandbox.Need, file string, to int) (list []plan.Refusal) {
	for _, n := range needs {
		if slices.ContainsFunc(n.Allow, func(s string) bool { return slices.Contains(forbidden, s) }) {
			list = append(list, plan.Refusal{
				Reason: unit + " forbids the agent what `" + n.For + "` asks for: " + n.Because})
		}
	}
	if len(list) == 0 {
		return nil
	}
	write := "bulkhead unit --write"
	if file != "" {
		write = "bulkhead --policy " + file + " unit --write"
	}
	if to > 0 {
		write += " --to " + strconv.Itoa(to)
	}
	list[len(list)-1].Hint = "`" + write + " && systemctl daemon-reload && systemctl restart " +
		strings.TrimSuffix(unit, ".service") + "`, then the same again; limits stay in force meanwhile. With --force " +
		"the kernel refuses it"
	return list
}
