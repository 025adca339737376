package state

import (
	"time"

	"bulkhead/internal/policy"
)

// Tuned is a setting of the kernel that `tune apply` put in force beside the policy.
type Tuned struct {
	Rule   string    `json:"rule"` // of the advice that it is from
	Name   string    `json:"name"` // policy.Tuning.Name
	Value  string    `json:"value"`
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
}

// RuleSELinux stands where a rule of advice stands for what `selinux apply` sets.
const RuleSELinux = "selinux"

// Tunings are those settings as a policy would ask for them.
func Tunings(all []Tuned) (tunings []policy.Tuning) {
	for _, t := range all {
		from := "tune apply " + t.Rule
		if t.Rule == RuleSELinux {
			from = "selinux apply"
		}
		tunings = append(tunings, policy.Tuning{Name: t.Name, Value: t.Value, From: from})
	}
	return tunings
}
