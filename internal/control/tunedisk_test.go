package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bulkhead/internal/api"
	"bulkhead/internal/inspect"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/plan"
	"bulkhead/internal/policy"
	"bulkhead/internal/state"
)

// diskMachine is a machine with a disk of a serial number, "" for one without.
func diskMachine(t *testing.T, serial string) *machine {
	t.Helper()
	m := newMachine(t, "252.39")
	m.must(os.Mkdir(filepath.Join(m.root, "sys/block"), 0o755))
	m.put(queue+"scheduler", "mq-deadline\n")
	m.put(queue+"nr_requests", "512\n")
	if serial != "" {
		m.put("sys/block/vdt/serial", serial+"\n")
	}
	return m
}

var (
	noScheduler = state.Tuned{Rule: "IO-01", Name: "disk vdt/scheduler", Value: "none"}
	lessQueued  = state.Tuned{Rule: "IO-04", Name: "disk vdt/nr_requests", Value: "64"}
)

const (
	untunedDisk = "mq-deadline; 512"
	ofDisk      = `ENV{DEVTYPE}=="disk", ATTRS{serial}=="abc", ATTR{queue/`
	tunedDisk   = `none; 64; ` + ofDisk + `scheduler}="none"; ` + ofDisk + `nr_requests}="64"`
)

// bootDisk starts the machine again: the disk has the value of its rule, and maybe another name.
func (m *machine) bootDisk() {
	m.t.Helper()
	held := m.settings()
	for file, values := range map[string][2]string{"scheduler": {"mq-deadline", "none"}, "nr_requests": {"512", "64"}} {
		value := values[0]
		if strings.Contains(held, ofDisk+file+`}="`+values[1]) {
			value = values[1]
		}
		m.put(queue+file, value+"\n")
	}
	m.put("proc/sys/kernel/random/boot_id", "11111111-2222-3333-4444-555555555555\n")
	m.reopened(-1)
}

// What a disk has comes into force, lasts over a boot under another name of the disk, is kept, and goes again.
func TestTuneDisk(t *testing.T) {
	m := diskMachine(t, "abc")
	m.tune(noScheduler, lessQueued)
	m.tunedAs("tuned", tunedDisk)
	if reply := m.tune(noScheduler); len(reply.Plan.Steps) > 0 {
		t.Errorf("once more: %+v", reply.Plan.Steps)
	}
	m.put(queue+"scheduler", "bfq\n")
	_, err := m.full()
	m.must(err)
	m.tunedAs("put right", tunedDisk)
	m.bootDisk()
	block := filepath.Join(m.root, "sys/block")
	m.must(os.Rename(filepath.Join(block, "vdt"), filepath.Join(block, "vdu")))
	m.put(queue+"scheduler", "mq-deadline\n") // another disk has the name now
	all, err := inspect.Tuning(t.Context(), m.Reconciler.Controller)
	m.must(err)
	if len(all) != 2 || all[1].Disk != "vdu" || all[1].Holds != "none" || all[1].Before != "mq-deadline" {
		t.Errorf("status: %+v", all)
	}
	m.must(os.RemoveAll(filepath.Join(block, "vdt")))
	m.must(os.Rename(filepath.Join(block, "vdu"), filepath.Join(block, "vdt")))
	_, err = m.do(api.Request{Verb: "tune rollback"})
	m.must(err)
	m.tunedAs("rolled back", untunedDisk)
}

// What was set under the first scheduler, and before another one was, is given back after it.
func TestTuneDiskInTwoSteps(t *testing.T) {
	m := diskMachine(t, "abc")
	m.tune(lessQueued)
	m.tune(noScheduler)
	_, err := m.do(api.Request{Verb: "tune rollback"})
	m.must(err)
	m.tunedAs("rolled back", untunedDisk)
}

// A disk that says nothing of itself is set until the boot, and that is said.
func TestTuneDiskWithoutIdentity(t *testing.T) {
	m := diskMachine(t, "")
	reply := m.tune(noScheduler)
	m.tunedAs("tuned", "none; 512")
	if text := plan.Render(reply.Plan, plan.RenderOptions{Form: plan.FormBrief}); !strings.Contains(text,
		"settings of the disk vdt last until the host boots") {
		t.Errorf("it says\n%s", text)
	}
	m.release()
	m.tunedAs("released", untunedDisk)
	m.tune(noScheduler)
	m.bootDisk()
	m.tunedAs("booted", untunedDisk)
	_, err := m.full()
	m.must(err)
	m.tunedAs("set again", "none; 512")
	_, err = m.do(api.Request{Verb: "tune rollback"})
	m.must(err)
	m.tunedAs("rolled back", untunedDisk)
}

// The policy counts where it names the disk in another way; a disk that is not there is said.
func TestTuneDiskByPolicy(t *testing.T) {
	m := diskMachine(t, "abc")
	m.tune(noScheduler)
	m.apply("host: {tune: {disk vdt: {scheduler: kyber}}}\n")
	m.tunedAs("by the policy", `kyber; 512; `+ofDisk+`scheduler}="kyber"`)
	if text := strings.Join(m.tune(noScheduler).Notes, "\n"); !strings.Contains(text,
		"the policy says disk vdt/scheduler = kyber, which counts") {
		t.Errorf("it says %q", text)
	}
	reply := m.apply("host: {tune: {disk vdz: {scheduler: none}}}\n")
	m.tunedAs("by `tune apply` again", `none; 512; `+ofDisk+`scheduler}="none"`)
	if text := plan.Render(reply.Plan, plan.RenderOptions{Form: plan.FormBrief}); !strings.Contains(text,
		"there is no disk as in disk vdz/scheduler") {
		t.Errorf("it says\n%s", text)
	}
	m.release()
	m.tunedAs("released", untunedDisk)
}

// Two names of one disk with two values are an error that names both places, before anything is written.
func TestTuneDiskTwice(t *testing.T) {
	m := diskMachine(t, "abc")
	const both = "host: {tune: {disk vdt: {scheduler: none}, disk serial:abc: {scheduler: %s}}}\n"
	_, err := m.do(api.Request{Verb: "apply", Sources: m.policy(fmt.Sprintf(both, "kyber"))})
	if problems := (policy.Problems)(nil); !errors.As(err, &problems) || len(problems) != 1 ||
		!strings.Contains(problems[0].Msg, "are one setting of vdt") || len(problems[0].Also) != 1 {
		t.Errorf("it says %v", err)
	}
	m.tunedAs("refused", untunedDisk)
	m.apply(fmt.Sprintf(both, "none"))
	m.tunedAs("agreed", `none; 512; `+ofDisk+`scheduler}="none"`)
}

// Killed after any step, settings of a disk are undone by whoever comes next, after a boot too.
func TestTuneDiskKilled(t *testing.T) {
	tuneKilled(t, tuneTrial{
		machine:  func(t *testing.T) *machine { return diskMachine(t, "abc") },
		settings: []state.Tuned{noScheduler, lessQueued}, untuned: untunedDisk, tuned: tunedDisk, steps: 3,
		step: func(m *machine, s plan.Step) {
			if s.Kind == tunable.KindQueue && strings.HasSuffix(s.Addr, "/scheduler") {
				m.put(queue+"nr_requests", map[string]string{"none": "1023"}[s.New]+"\n") // as the kernel does
				if s.New != "none" {
					m.put(queue+"nr_requests", "512\n")
				}
			}
		},
		boot: (*machine).bootDisk,
	})
}
