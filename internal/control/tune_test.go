package control

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/linux/tunable/ownfile"
	"bulkhead/internal/plan"
	"bulkhead/internal/state"
)

const (
	swappiness = "proc/sys/vm/swappiness"
	thpFile    = "sys/kernel/mm/transparent_hugepage/enabled"
	queue      = "sys/block/vdt/queue/" // of a disk of diskMachine
)

// tunedMachine is a machine with two settings of the kernel.
func tunedMachine(t *testing.T) *machine {
	t.Helper()
	m := newMachine(t, "252.39")
	m.put(swappiness, "60\n")
	m.put(thpFile, "always\n")
	return m
}

func (m *machine) put(file, text string) {
	m.t.Helper()
	at := filepath.Join(m.root, file)
	m.must(os.MkdirAll(filepath.Dir(at), 0o755))
	m.must(os.WriteFile(at, []byte(text), 0o600))
}

// settings are what the machine's settings and boot files hold, without what bulkhead says of its files.
func (m *machine) settings() string {
	m.t.Helper()
	var held []string
	for _, file := range []string{swappiness, thpFile, tunable.SysctlFile, tunable.AttributeFile, queue + "scheduler",
		queue + "nr_requests", tunable.QueueFile} {
		text, err := os.ReadFile(filepath.Join(m.root, file))
		if err != nil && !os.IsNotExist(err) {
			m.t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "#") {
				line = strings.TrimPrefix(strings.TrimSpace(line), `ACTION=="add|change", SUBSYSTEM=="block", `)
				held = append(held, line)
			}
		}
	}
	return strings.Join(held, "; ")
}

func (m *machine) tunedAs(when, want string) {
	m.t.Helper()
	if got := m.settings(); got != want {
		m.t.Errorf("%s: it is %q, want %q", when, got, want)
	}
}

func (m *machine) tune(settings ...state.Tuned) *api.Reply {
	m.t.Helper()
	reply, err := m.do(api.Request{Verb: "tune apply", Tune: settings})
	m.must(err)
	return reply
}

var (
	lowSwap = state.Tuned{Rule: "MEM-01", Name: "vm.swappiness", Value: "1"}
	madvise = state.Tuned{Rule: "MEM-12", Name: "/" + thpFile, Value: "madvise"}
)

const (
	untunedHost = "60; always"
	tunedHost   = "1; madvise; vm.swappiness = 1; w /" + thpFile + " - - - - madvise"
)

// boot starts the machine again: with what its files set, and with another boot id.
func (m *machine) boot() {
	m.t.Helper()
	m.put(swappiness, "60\n")
	m.put(thpFile, "always\n")
	held := m.settings()
	if strings.Contains(held, "vm.swappiness = 1") {
		m.put(swappiness, "1\n")
	}
	if strings.Contains(held, "- madvise") {
		m.put(thpFile, "madvise\n")
	}
	m.put("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
	m.reopened(-1)
}

// Settings come into force, at boot too, and go again as they were, after a boot too; on a host without a policy.
func TestTune(t *testing.T) {
	for _, booted := range []bool{false, true} {
		m := tunedMachine(t)
		m.tune(lowSwap, madvise)
		m.tunedAs("tuned", tunedHost)
		if reply := m.tune(lowSwap); len(reply.Plan.Steps) > 0 {
			t.Errorf("once more: %+v", reply.Plan.Steps)
		}
		if booted {
			m.boot()
			m.tunedAs("booted", tunedHost)
		}
		_, err := m.do(api.Request{Verb: "tune rollback", Rules: []string{"mem-01"}})
		m.must(err)
		m.tunedAs("without MEM-01", "60; madvise; w /"+thpFile+" - - - - madvise")
		_, err = m.do(api.Request{Verb: "tune rollback", Rules: []string{"MEM-99"}})
		if err == nil || !strings.Contains(err.Error(), "MEM-99") {
			t.Errorf("an unknown rule: %v", err)
		}
		m.tune(lowSwap)
		if _, err := m.do(api.Request{Verb: "tune rollback"}); err != nil {
			t.Error(err)
		}
		m.tunedAs("rolled back", untunedHost)
		m.tune(lowSwap, madvise)
		m.release()
		m.tunedAs("released", untunedHost)
		if s, err := state.Load(m.Store, state.DocTuned); err != nil || len(s.Tuned) > 0 {
			t.Errorf("after a release: %+v, %v", s.Tuned, err)
		}
	}
}

// What the policy says of a setting counts, and what is taken out of it goes.
func TestTuneByPolicy(t *testing.T) {
	m := tunedMachine(t)
	m.tune(lowSwap)
	m.apply("host: {tune: {vm.swappiness: 10, thp: madvise}}\n")
	m.tunedAs("by the policy", "10; madvise; vm.swappiness = 10; w /"+thpFile+" - - - - madvise")
	m.apply("host: {tune: {vm.no_such: 10}}\n")
	m.tunedAs("by `tune apply` again", "1; always; vm.swappiness = 1")
	st, err := inspect.Status(t.Context(), m.Reconciler.Controller)
	m.must(err)
	if st.Differs > 0 || st.Tuned != 2 { // that of the policy, which this kernel lacks, too
		t.Errorf("%d steps differ, %d settings are kept", st.Differs, st.Tuned)
	}
	reply := m.apply("host: {tune: {vm.no_such: 11}}\n")
	if text := plan.Render(reply.Plan, plan.RenderOptions{Form: plan.FormBrief}); !strings.Contains(text,
		"this kernel has no vm.no_such") {
		t.Errorf("it says\n%s", text)
	}
}

// A rollback goes back to revisions of the policy. Where there is none it names what takes settings back.
func TestRollbackOfATunedHost(t *testing.T) {
	m := tunedMachine(t)
	m.apply("host: {tune: {thp: madvise}}\n")
	m.tune(lowSwap)
	if _, err := m.do(api.Request{Verb: "rollback"}); !strings.Contains(api.HintOf(err), "`bulkhead tune rollback`") {
		t.Errorf("a rollback with no revision to go back to: %v, hint %q", err, api.HintOf(err))
	}
}

// A release works with the applied policy lost, and a host without groups can be tuned again after it; a setting that
// the policy has is said to count.
func TestTuneAfterARelease(t *testing.T) {
	m := tunedMachine(t)
	m.tune(lowSwap, madvise)
	m.must(os.Remove(filepath.Join(m.Store.Dir(), "applied.json")))
	m.release()
	m.tunedAs("released without the applied policy", untunedHost)
	m.tune(lowSwap)
	m.release()
	m.tune(lowSwap)
	m.tunedAs("tuned again", "1; always; vm.swappiness = 1")
	m.apply("host: {tune: {vm.swappiness: 10}}\n")
	reply := m.tune(lowSwap)
	if text := strings.Join(reply.Notes, "\n"); !strings.Contains(text,
		"the policy says vm.swappiness = 10, which counts") {
		t.Errorf("it says %q", text)
	}
	m.release()
	if _, err := m.do(api.Request{Verb: "tune apply", Tune: []state.Tuned{lowSwap}}); err == nil {
		t.Error("a released host with a policy is tuned")
	}
}

// The agent puts right what somebody else changed, and says so; an edited file is kept aside.
func TestTuneIsKept(t *testing.T) {
	m := tunedMachine(t)
	m.tune(lowSwap, madvise)
	_, err := m.full()
	m.must(err)
	m.put(swappiness, "30\n")
	m.put(tunable.SysctlFile, "vm.swappiness = 30\n")
	_, err = m.full()
	m.must(err)
	m.tunedAs("put right", tunedHost)
	if text, err := os.ReadFile(filepath.Join(m.root, tunable.SysctlFile+ownfile.Edited)); err != nil ||
		string(text) != "vm.swappiness = 30\n" {
		t.Errorf("kept aside: %q, %v", text, err)
	}
	s, err := state.Load(m.Store, state.DocConflicts)
	m.must(err)
	var said []string
	for _, c := range s.Conflicts {
		said = append(said, c.String())
	}
	if text := strings.Join(said, "\n"); !strings.Contains(text, `held "30" instead of "1"`) {
		t.Errorf("conflicts:\n%s", text)
	}
}

// What nobody confirms is undone.
func TestTuneOnTrial(t *testing.T) {
	m := tunedMachine(t)
	m.tune(lowSwap)
	_, err := m.do(api.Request{Verb: "tune apply", Tune: []state.Tuned{madvise}, ConfirmWithin: time.Minute})
	m.must(err)
	m.tunedAs("on trial", tunedHost)
	m.ahead = 2 * time.Minute
	m.tended()
	m.watched()
	m.tunedAs("undone", "1; always; vm.swappiness = 1")
}

// Killed after any step, tune apply is undone by whoever comes next, after a boot too, and so is what takes it back.
func TestTuneKilled(t *testing.T) {
	tuneKilled(t, tuneTrial{
		machine: tunedMachine, settings: []state.Tuned{lowSwap, madvise}, untuned: untunedHost, tuned: tunedHost,
		steps: 4, step: func(*machine, plan.Step) {}, boot: (*machine).boot,
	})
}

// tuneTrial is what tuneKilled needs: machines, settings with what the machine has without and with them, the steps
// that they take at least, what the kernel does after a step, and a boot.
type tuneTrial struct {
	machine        func(*testing.T) *machine
	settings       []state.Tuned
	untuned, tuned string
	steps          int
	step           func(*machine, plan.Step)
	boot           func(*machine)
	held           func(*machine) string // what the machine has, nil for settings
	rules          []string              // that the rollback names
}

// tuneKilled kills tune apply and tune rollback after each of their steps.
func tuneKilled(t *testing.T, trial tuneTrial) {
	for _, verb := range []string{"tune apply", "tune rollback"} {
		for _, booted := range []bool{false, true} {
			for at := 0; ; at++ {
				m := trial.machine(t)
				want := trial.untuned
				r := api.Request{Verb: verb, Tune: trial.settings}
				if verb == "tune rollback" {
					m.tune(r.Tune...)
					r.Tune, r.Rules, want = nil, trial.rules, trial.tuned
				}
				m.AfterStep = func(i int, s plan.Step) {
					trial.step(m, s)
					if i == at {
						panic(killed{})
					}
				}
				died := true
				m.surviving(func() {
					_, err := m.do(r)
					m.must(err)
					died = false
				})
				m.AfterStep = nil
				if !died {
					if at < trial.steps {
						t.Errorf("%s ended after %d steps", verb, at)
					}
					break
				}
				if booted {
					trial.boot(m)
				}
				if _, err := m.full(); err != nil {
					t.Errorf("%s, step %d: %v", verb, at, err)
				}
				held := trial.held
				if held == nil {
					held = (*machine).settings
				}
				if got := held(m); got != want {
					t.Errorf("%s, booted %v, step %d: it is %q, want %q", verb, booted, at, got, want)
				}
			}
		}
	}
}

// The pool of huge pages of a node and that of all nodes are not both set; one that is set goes first.
func TestTuneOnePool(t *testing.T) {
	const file = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages"
	m := tunedMachine(t)
	m.put("proc/sys/vm/nr_hugepages", "0\n")
	m.put(file, "0\n")
	whole := state.Tuned{Rule: "MEM-47", Name: "vm.nr_hugepages", Value: "7"}
	node := state.Tuned{Rule: "MEM-19", Name: "/" + file, Value: "4"}
	for _, two := range [][2]state.Tuned{{whole, node}, {node, whole}} {
		m.tune(two[0])
		m.tune(two[0])
		_, err := m.do(api.Request{Verb: "tune apply", Tune: []state.Tuned{two[1]}})
		if api.CodeOf(err) != api.CodeRefused || !strings.Contains(api.HintOf(err), "tune rollback "+two[0].Rule) {
			t.Errorf("%s beside %s: %v, %s", two[1].Name, two[0].Name, err, api.HintOf(err))
		}
		_, err = m.do(api.Request{Verb: "tune rollback", Rules: []string{two[0].Rule}})
		m.must(err)
	}
	m.tune(node)
}
