package state

import (
	"time"

	"bulkhead/internal/policy"
)

// Tuned is a setting of the kernel, or a limit of a group, that `tune apply` put in force beside the policy.
type Tuned struct {
	Rule string `json:"rule"` // of the advice that it is from
	Name string `json:"name"` // policy.Tuning.Name; of a limit group and key, "mysql3306:memory.huge"
	// On is the size of the pages, of a limit of huge pages of a group ("2MiB"). "" is a setting of the kernel.
	On     string    `json:"on,omitempty"`
	Value  string    `json:"value"`
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	// Asked says that the change that is being made asks for it.
	Asked bool `json:"-"`
}

// RuleSELinux stands where a rule of advice stands for what `selinux apply` sets.
const RuleSELinux = "selinux"

// IsLimit says whether it is a limit of a group.
func (t Tuned) IsLimit() bool { return t.On != "" }

// Assignment is a limit as `set` takes it: "mysql3306:memory.huge=200MiB".
func (t Tuned) Assignment() string { return t.Name + "=" + t.Value }

// Tunings are those settings as a policy would ask for them, without limits of groups.
func Tunings(all []Tuned) (tunings []policy.Tuning) {
	for _, t := range all {
		if t.IsLimit() {
			continue
		}
		from := "tune apply " + t.Rule
		if t.Rule == RuleSELinux {
			from = "selinux apply"
		}
		tunings = append(tunings, policy.Tuning{Name: t.Name, Value: t.Value, From: from, Asked: t.Asked})
	}
	return tunings
}

// Soak is a time in which domains of SELinux are permissive, so that one sees what they would be denied in each case
// of use.
type Soak struct {
	At      time.Time `json:"at"` // zero is none
	By      string    `json:"by"`
	Reason  string    `json:"reason,omitempty"`
	Domains []string  `json:"domains"`
	// Theirs are those of Domains that somebody else had made permissive: they stay so.
	Theirs []string `json:"theirs,omitempty"`
	// Checkpoints begin a case each, in the order in which they were gone through.
	Checkpoints []Checkpoint `json:"checkpoints"`
	Audit       Audited      `json:"audit,omitzero"` // when it began
}

// Checkpoint is where a case begins; it ends at the next one.
type Checkpoint struct {
	Name  string    `json:"name"`
	At    time.Time `json:"at"`
	Audit Audited   `json:"audit,omitzero"`
}

// Audited is how many records of audit the kernel has lost since a boot, by its boot_id; "" is not known.
type Audited struct {
	Boot string `json:"boot"`
	Lost uint32 `json:"lost"`
}
