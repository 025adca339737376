package convert

import (
	"reflect"
	"testing"

	"bulkhead/internal/policy/parse"

	"bulkhead/internal/policy"
)

// What an owner may do, within what, and who may read, are said again as they were read.
func TestOwnersAreSaidAgain(t *testing.T) {
	parse := func(agent, owner string) *policy.Policy {
		t.Helper()
		p, err := parse.Policy([]policy.Source{{Path: "p",
			Text: "version: 1\nagent: " + agent + "\ngroups:\n  g: {owner: " + owner + "}\n"}})
		if err != nil {
			t.Fatalf("%s: %v", owner, err)
		}
		for i := range p.Groups[0].Owner {
			p.Groups[0].Owner[i].Pos = policy.Pos{}
		}
		return p
	}
	before := parse("{read: everyone}", "[{user: '7', may: [run, move], mode: '0664'}, {unix_group: dba, may: [set, "+
		"freeze], bounds: {cpu.limit: ..8, memory.max: 1GiB..max, cpu.cpus: '0-3,8', tasks: '10..'}}]")
	after := parse(agentFlow(before.Agent), listOf(before.Groups[0].Owner, OwnerFlow))
	if !reflect.DeepEqual(before.Groups[0].Owner, after.Groups[0].Owner) || before.Agent.Read != after.Agent.Read {
		t.Errorf("read %+v, %v; again %+v, %v", before.Groups[0].Owner, before.Agent, after.Groups[0].Owner,
			after.Agent)
	}
}
