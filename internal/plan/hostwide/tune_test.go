package hostwide

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/tunable"
	"bulkhead/internal/plan"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
)

// What excludes a setting is given back before it, so that neither is written over the other; values are compared by
// their words; a setting that the kernel does not have is not enforced.
func TestTune(t *testing.T) {
	bytes, ratio := tunable.Sysctl("vm.dirty_bytes"), tunable.Sysctl("vm.dirty_ratio")
	file, _ := tunable.BootFile(tunable.KindSysctl)
	for name, tt := range map[string]struct {
		tune         []policy.Tuning
		holds, first map[change.Target]string
		want         []string
	}{
		"one for its twin": {[]policy.Tuning{{Name: "vm.dirty_ratio", Value: "10"}},
			map[change.Target]string{bytes: "1048576", ratio: "vm.dirty_bytes=1048576",
				file: "vm.dirty_bytes = 1048576"},
			map[change.Target]string{bytes: "vm.dirty_ratio=20", file: ""},
			[]string{"vm.dirty_bytes: 1048576 -> vm.dirty_ratio=20", "vm.dirty_ratio: 20 -> 10",
				file.Addr + ": vm.dirty_bytes = 1048576 -> vm.dirty_ratio = 10"}},
		"tabs": {[]policy.Tuning{{Name: "net.ipv4.tcp_rmem", Value: "1 2 3"}},
			map[change.Target]string{tunable.Sysctl("net.ipv4.tcp_rmem"): "1\t2\t3", file: "net.ipv4.tcp_rmem = 1 2 3"},
			nil, nil},
		"given back": {nil, map[change.Target]string{bytes: "1", file: "vm.dirty_bytes = 1"},
			map[change.Target]string{bytes: "vm.dirty_ratio=20", file: ""},
			[]string{file.Addr + ": vm.dirty_bytes = 1 -> ", "vm.dirty_bytes: 1 -> vm.dirty_ratio=20"}},
		"not there": {[]policy.Tuning{{Name: "vm.no_such", Value: "1"}}, nil, nil, nil},
	} {
		in, out := &plan.Input{Facts: &host.Facts{}, Tune: tt.tune}, &plan.Plan{}
		in.Observed.Values, in.Observed.Originals.Tuned = tt.holds, tt.first
		Tune(in, &layout.Forest{}, out)
		var got []string
		for _, s := range out.Steps {
			got = append(got, fmt.Sprintf("%s: %s -> %s", s.Addr, s.Old, s.New))
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if broken := len(out.Notes) == 1 && out.Notes[0].NotEnforced; broken != (name == "not there") {
			t.Errorf("%s: notes %+v", name, out.Notes)
		}
	}
}

// What cannot be read any more is not given back, and that is said: a rollback would seem to be done.
func TestTuneNotGivenBack(t *testing.T) {
	for name, want := range map[string]string{"kernel psi": `different values of it`,
		"option /etc/mysql/conf.d/zz-bulkhead.cnf/sync_binlog": "not of bulkhead's making any more"} {
		in, out := &plan.Input{Facts: &host.Facts{}}, &plan.Plan{}
		in.Observed.Originals.Tuned = map[change.Target]string{tunable.Target(name): ""}
		Tune(in, &layout.Forest{}, out)
		if len(out.Steps) > 0 || len(out.Notes) != 1 || !out.Notes[0].NotEnforced ||
			!strings.Contains(out.Notes[0].Text, want) || !strings.Contains(out.Notes[0].Text, name) {
			t.Errorf("%s: %+v, %+v", name, out.Steps, out.Notes)
		}
	}
}

// What stands against a setting of a service is said: that it is not there, or that no systemd runs.
func TestTuneMissingService(t *testing.T) {
	for systemd, want := range map[bool]string{true: "there is no db.service here", false: "the init script"} {
		in, out := &plan.Input{Facts: &host.Facts{Systemd: systemd},
			Tune: []policy.Tuning{{Name: "unit db.service/LimitNOFILE", Value: "65535"}}}, &plan.Plan{}
		Tune(in, &layout.Forest{}, out)
		if len(out.Steps) > 0 || len(out.Notes) != 1 || !out.Notes[0].NotEnforced ||
			!strings.Contains(out.Notes[0].Text, want) {
			t.Errorf("systemd %v: %+v, %+v", systemd, out.Steps, out.Notes)
		}
	}
}

// A scheduler that the weights of groups need is neither set nor given back, and that is said.
func TestTuneLeavesWeightsAlone(t *testing.T) {
	tuning := policy.Tuning{Name: "disk sda/scheduler", Value: "none", Disk: "sda"}
	in, out := &plan.Input{Facts: &host.Facts{Devices: []blockdev.Device{{Number: "8:0", Name: "sda"}}},
		Tune: []policy.Tuning{tuning}}, &plan.Plan{}
	in.Observed.Values = map[change.Target]string{tuning.Target(): "bfq"}
	in.Observed.Originals.Tuned = map[change.Target]string{tuning.Target(): "mq-deadline"}
	forest := &layout.Forest{Nodes: []*layout.Node{{Settings: policy.Settings{
		{Key: policy.KeyIOWeight, On: "sda", Dev: "8:0", Via: policy.ViaBFQ}}}}}
	Tune(in, forest, out)
	if len(out.Steps) > 0 || len(out.Notes) != 1 || !out.Notes[0].NotEnforced {
		t.Errorf("steps %+v, notes %+v", out.Steps, out.Notes)
	}
	Tune(in, &layout.Forest{}, out)
	if len(out.Steps) != 1 || out.Steps[0].New != "none" {
		t.Errorf("without weights: %+v", out.Steps)
	}
}
