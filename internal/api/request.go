// Package api holds the values that go in and out of bulkhead's verbs: requests and their replies, the status, and the
// errors with the exit codes that they end in. The command line, the agent's socket and the verbs share them; their
// JSON names are stable. Nothing in here looks at the host.
package api

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// Request is one changing verb, as the command line and the agent's socket hand it over.
type Request struct {
	Verb   string `json:"verb"`
	By     string `json:"by,omitempty"` // who; the agent fills it in from the peer's credentials
	Reason string `json:"reason,omitempty"`
	Force  bool   `json:"force,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`

	Sources []policy.Source `json:"sources,omitempty"` // apply; release, for its root group when none is recorded
	Assign  []string        `json:"assign,omitempty"`  // set, unset: "group:key=value", "group:key"
	On      string          `json:"on,omitempty"`      // set, unset: the io target
	For     time.Duration   `json:"for,omitempty"`     // set, move, freeze
	Groups  []string        `json:"groups,omitempty"`  // release, freeze, thaw
	All     bool            `json:"all,omitempty"`     // release
	Group   string          `json:"group,omitempty"`   // move
	PIDs    []int           `json:"pids,omitempty"`    // move, move-back
	Tree    bool            `json:"tree,omitempty"`    // move: with descendants
	To      int             `json:"to,omitempty"`      // rollback: a revision; 0 is the one before
	// Waits has a rollback undo one change on trial and nothing else: the one that waits to be confirmed until then, by
	// its Reply.Confirm.
	Waits time.Time `json:"waits,omitzero"`
	// ConfirmWithin is for how long an apply, set, unset or rollback waits to be confirmed before it is undone; 0: it
	// stays.
	ConfirmWithin time.Duration `json:"confirm_within,omitempty"`
	// Unguarded has nothing watched of a change that waits to be confirmed: that it ends is enough. Of others it says
	// nothing.
	Unguarded bool `json:"unguarded,omitempty"`

	// Canary is the group that an apply goes before the others with, and CanaryFor how long it is watched; 0 is a
	// minute.
	Canary    string        `json:"canary,omitempty"`
	CanaryFor time.Duration `json:"canary_for,omitempty"`
	Migrate   bool          `json:"migrate,omitempty"` // apply, set: NUMA nodes may change under memory that is there

	// Tune are settings of the kernel for `tune apply`, each with its rule, name and value.
	Tune []state.Tuned `json:"tune,omitempty"`
	// Rules are those whose settings `tune rollback` gives back; none is all of them.
	Rules []string `json:"rules,omitempty"`
	// Enforce are domains of SELinux of which `tune rollback` takes back that they are permissive, and nothing else.
	// EnforceFor is for how long they become permissive again when something is denied to them; 0 is not.
	Enforce    []string      `json:"enforce,omitempty"`
	EnforceFor time.Duration `json:"enforce_for,omitempty"`

	// Caller is who asks, when that is not root; the agent fills it in.
	Caller *Caller `json:"-"`

	// Of is the change that a revert undoes, or a canary or confirm is about; only bulkhead itself fills it in.
	Of string `json:"-"`
}

// enforces is the part of a request that enforces domains of SELinux alone.
const enforces = "enforce"

// Known are the parts of requests that came after others: an agent says that it knows them. One that does not leaves
// out what it does not know.
var Known = []string{enforces}

// Beyond says why an agent that knows these parts is not asked: it would do something else.
func (r Request) Beyond(knows []string) error {
	if len(r.Enforce) == 0 || slices.Contains(knows, enforces) {
		return nil
	}
	return Errorf(CodeRefused, "restart the agent, for instance by `systemctl restart bulkhead`: limits stay in "+
		"force; then give the same command again", "the agent that runs is of an older version than this program: it "+
		"would take back every setting of SELinux, and not only that %s is permissive", strings.Join(r.Enforce, ", "))
}

// What is the arguments of a request as a person would have typed them, for the history.
func (r Request) What() string {
	words := append(slices.Clone(r.Assign), r.Rules...)
	for _, t := range r.Tune {
		if !slices.Contains(words, t.Rule) {
			words = append(words, t.Rule)
		}
	}
	for _, domain := range r.Enforce {
		words = append(words, "--enforce", domain)
	}
	if r.EnforceFor > 0 {
		words = append(words, "--watch", Span(r.EnforceFor))
	}
	if r.Of != "" {
		words = append(words, r.Of)
	}
	if r.On != "" {
		words = append(words, "--on", r.On)
	}
	if r.Group != "" {
		words = append(words, r.Group)
	}
	words = append(words, r.Groups...)
	for _, pid := range r.PIDs {
		words = append(words, strconv.Itoa(pid))
	}
	if r.Tree {
		words = append(words, "--tree")
	}
	if r.All {
		words = append(words, "--all")
	}
	if r.To > 0 {
		words = append(words, "--to", strconv.Itoa(r.To))
	}
	if r.Migrate {
		words = append(words, "--migrate")
	}
	if r.For > 0 {
		words = append(words, "--for", Span(r.For))
	}
	if r.ConfirmWithin > 0 {
		words = append(words, "--confirm-within", Span(r.ConfirmWithin))
	}
	return strings.Join(words, " ")
}

// Span prints a length of time as people write it: 90s is 1m30s, two hours are 2h.
func Span(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// verbs are all that may be asked for.
var verbs = []string{"apply", "set", "unset", "release", "rollback", "move", "move-back", "freeze", "thaw",
	"confirm", "tune apply", "tune rollback"}

// missing says for each verb what it cannot do without: when it lacks that, what to say, and how to say it.
var missing = map[string]struct {
	lacks      func(r Request) bool
	text, hint string
}{
	"apply": {func(r Request) bool { return len(r.Sources) == 0 }, "say which policy to apply",
		"`bulkhead apply --policy FILE`"},
	"set": {func(r Request) bool { return len(r.Assign) == 0 }, "say which limit to set",
		"`bulkhead set GROUP:KEY=VALUE`"},
	"unset": {func(r Request) bool { return len(r.Assign) == 0 }, "say which limit to unset",
		"`bulkhead unset GROUP:KEY`"},
	"release": {func(r Request) bool { return r.All == (len(r.Groups) > 0) }, "say what to release",
		"`bulkhead release GROUP…` or `bulkhead release --all`"},
	"move": {func(r Request) bool { return r.Group == "" || len(r.PIDs) == 0 },
		"say which processes to move, and where", "`bulkhead move GROUP PID…`"},
	"move-back": {func(r Request) bool { return len(r.PIDs) == 0 }, "say which processes to send back",
		"`bulkhead move --back PID…`"},
	"freeze": {func(r Request) bool { return len(r.Groups) == 0 }, "say which group to freeze",
		"`bulkhead freeze GROUP --for 10m`"},
	"thaw": {func(r Request) bool { return len(r.Groups) == 0 }, "say which group to thaw", "`bulkhead thaw GROUP`"},
	"tune apply": {func(r Request) bool { return len(r.Tune) == 0 }, "say which advice to follow",
		"`bulkhead tune plan` lists it; `bulkhead tune apply RULE…`"},
}

// Validate says what is missing or makes no sense, whoever asks: the command line or a program at the socket.
func (r Request) Validate() error {
	if !slices.Contains(verbs, r.Verb) {
		return Errorf(CodeUsage, "", "unknown verb %q", r.Verb)
	}
	if m, ok := missing[r.Verb]; ok && m.lacks(r) {
		return Errorf(CodeUsage, m.hint, "%s", m.text)
	}
	wrong := slices.IndexFunc(r.PIDs, func(pid int) bool { return pid < 1 })
	switch {
	case r.Force && strings.TrimSpace(r.Reason) == "":
		return Errorf(CodeUsage, "say why with --reason; the history keeps it", "--force needs a reason")
	case r.For < 0:
		return Errorf(CodeUsage, "say how long: --for 10m", "%s for %s: a time is longer than none", r.Verb, r.For)
	case r.Verb == "freeze" && r.For == 0:
		return Errorf(CodeUsage, "say how long: --for 10m", "a freeze always has an end")
	case slices.Contains(r.Groups, ""): // for release that would be everything
		return Errorf(CodeUsage, "`bulkhead status` lists the groups", "%s: a group has a name", r.Verb)
	case wrong >= 0:
		return Errorf(CodeUsage, "they count from 1", "%s: %d is not a process id", r.Verb, r.PIDs[wrong])
	case r.To < 0 || r.To > 0 && r.Verb != "rollback":
		return Errorf(CodeUsage, "`bulkhead rollback --to N`, with N from 1", "%s: no revision %d to go back to",
			r.Verb,
			r.To)
	}
	return errors.Join(r.validateCaller(), r.validateTrial(), r.validateEnforce())
}

// validateTrial says what makes no sense about how a change is tried.
func (r Request) validateTrial() error {
	within := func(d time.Duration) bool { return d >= minConfirm && d <= maxConfirm }
	switch {
	case r.ConfirmWithin != 0 && !within(r.ConfirmWithin):
		return Errorf(CodeUsage, "--confirm-within 5m", "%s --confirm-within %s: a change waits for 1s to 720h", r.Verb,
			r.ConfirmWithin)
	case r.ConfirmWithin != 0 && !slices.Contains(OnTrial, r.Verb):
		return Errorf(CodeUsage, "", "%s does not wait to be confirmed", r.Verb)
	case r.Canary == "" && r.CanaryFor == 0:
	case r.Verb != "apply" || r.Canary == "" || r.CanaryFor != 0 && !within(r.CanaryFor):
		return Errorf(CodeUsage, "`bulkhead apply --canary GROUP --canary-for 2m`",
			"%s: a canary is a group that an apply tries first, for 1s to 720h", r.Verb)
	}
	return nil
}

// validateEnforce says what makes no sense about the domains that a rollback enforces.
func (r Request) validateEnforce() error {
	within := r.EnforceFor >= minConfirm && r.EnforceFor <= maxConfirm
	switch {
	case r.EnforceFor != 0 && (!within || len(r.Enforce) == 0 || r.ConfirmWithin != 0):
		return Errorf(CodeUsage, "`bulkhead selinux apply --watch 1h`", "%s: what becomes enforced is watched for 1s "+
			"to 720h, and does not wait to be confirmed", r.Verb)
	case slices.Contains(r.Enforce, ""): // that would be every setting of SELinux that makes none permissive
		return Errorf(CodeUsage, "`bulkhead selinux soak status` lists them", "%s: a domain has a name", r.Verb)
	case len(r.Enforce) > 0 && r.Verb != "tune rollback":
		return Errorf(CodeUsage, "", "%s enforces no domains", r.Verb)
	}
	return nil
}

// OnTrial are those that may wait to be confirmed.
var OnTrial = []string{"apply", "set", "unset", "rollback", "tune apply", "tune rollback"}

// Reply is what a changing verb did.
type Reply struct {
	Plan     plan.Plan `json:"plan"`
	Changed  bool      `json:"changed"`
	Revision int       `json:"revision,omitempty"`
	Like     int       `json:"like,omitempty"`     // rollback: the revision it went back to, which Revision repeats
	Recorded bool      `json:"recorded,omitempty"` // written down, with nothing to change on the host
	Root     string    `json:"root"`               // name of the root group
	Skipped  []string  `json:"skipped,omitempty"`  // processes that exited or could not be moved
	Notes    []string  `json:"notes,omitempty"`    // what could not be done and undoes nothing else, or was replaced
	// Problems of the applied policy on the host as it is now, which kept nothing else from being done.
	Problems  policy.Problems `json:"problems,omitempty"`
	Overrides []string        `json:"overrides,omitempty"` // those still in force, for people
	Recovered string          `json:"recovered,omitempty"` // an interrupted change that was undone first
	Text      string          `json:"text,omitempty"`
	// Confirm is when the change is undone unless `confirm` comes; zero: it stays.
	Confirm time.Time `json:"confirm_until,omitzero"`
	// Guarded is until when the policy's guard watches it; zero: it does not.
	Guarded time.Time `json:"guarded_until,omitzero"`

	// Frozen are the freezes that this verb began. Without an agent the caller ends them.
	Frozen []state.Freeze `json:"-"`
}

// The bounds of a time to confirm in.
const (
	minConfirm = time.Second
	maxConfirm = 30 * 24 * time.Hour
)
