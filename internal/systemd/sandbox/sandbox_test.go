package sandbox_test

import (
	"strings"
	"testing"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/systemd/sandbox"
)

// Each part of a policy that the packaged unit forbids is named, and no other.
func TestNeeds(t *testing.T) {
	const group, owner = "groups: {a: {match: [{user: x}]", "groups: {a: {match: [{user: x}], owner: "
	const guard = group + "}}\nguard: {groups: {a: {throughput_falls: 20%, dsn: "
	for text, want := range map[string]string{
		"": "",
		group + ", io: [{on: /data, read: {iops: 5}, weight: 50}]}}": "",
		group + ", io: [{on: asm:DATA, read: {iops: 5}}]}}":          "io of group a",
		group + ", network: [{on: eth0, egress: 1Mbit/s}]}}":         "network of group a",
		"host: {network: [{on: eth0, rate: 1Gbit/s}]}":               "",
		"host: {network: [{on: eth0, peer: \"192.0.2.1:22\"}]}":      "host.network",
		group + "}}\nschedules: [{name: s, when: \"0 1 * * *\", for: 1h, set: {a: {network: [{on: eth0, egress: " +
			"1Mbit/s}]}}}]": "network of group a",
		owner + "{user: x, may: [set]}}}":                                       "owner of group a",
		owner + "{user: x, may: [run]}}}":                                       "owner of group a",
		owner + "{user: x, may: [freeze]}}}":                                    "",
		owner + "{user: x, may: [set], bounds: {tasks: 1..9}}}}":                "",
		"groups: {a: {groups: {b: {match: [{user: x}], owner: {may: [run]}}}}}": "owner of group a/b",
		"agent: {fast_moves: on}":                                               "agent.fast_moves",
		guard + "\"redis://localhost:6379\"}}}":                                 "guard of group a",
		guard + "\"unix:///run/r.sock\"}}}":                                     "",
	} {
		p, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: "version: 1\n" + text + "\n"}})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []string
		for _, n := range sandbox.Needs(p) {
			got = append(got, n.For)
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: it needs %q, want %q", text, got, want)
		}
	}
}

// A drop-in says what each setting is for, and each setting once.
func TestDropIn(t *testing.T) {
	if got := sandbox.DropIn(nil); got != "" {
		t.Errorf("for nothing it is %q", got)
	}
	got := sandbox.DropIn([]sandbox.Need{{"a", "one", []string{"X=1", "Y=2"}}, {"b", "two", []string{"X=1"}}})
	const want = "# What the policy needs beyond bulkhead.service as packaged.\n[Service]\n" +
		"# a: one\nX=1\nY=2\n# b: two\n"
	if got != want {
		t.Errorf("%q", got)
	}
}

// Of several policies each need is named once.
func TestOf(t *testing.T) {
	var policies []*policy.Policy
	for _, text := range []string{"agent: {fast_moves: on}", "",
		"agent: {fast_moves: on}\nhost: {network: [{on: eth0, peer: \"192.0.2.1:22\"}]}"} {
		p, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: "version: 1\n" + text + "\n"}})
		if err != nil {
			t.Fatal(err)
		}
		policies = append(policies, p)
	}
	needs := sandbox.Of(policies...)
	if len(needs) != 2 || needs[0].For != "agent.fast_moves" || needs[1].For != "host.network" {
		t.Errorf("%+v", needs)
	}
	if got := sandbox.Settings(append(needs, needs...)); len(got) != 3 {
		t.Errorf("settings are %q", got)
	}
}
