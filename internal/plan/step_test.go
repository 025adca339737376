package plan

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
)

// The fields by which programs know a step stay, whatever its kind; it is read back as it was, and from an agent of an
// earlier version, which sent those fields alone.
func TestStepAsJSON(t *testing.T) {
	dir := cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead/a"}
	line := cgroup.File{Dir: dir, Name: "io.max", Key: "8:0"}
	id := procfs.ID{PID: 7, Start: 70}
	const at = `"dir":{"hierarchy":"cpu","path":"/bulkhead/a"}`
	const who = `"pid":{"pid":7,"start":70},"comm":"mysqld"`
	limit := func(text string) string {
		return systemd.Assigned([]systemd.Assignment{{Name: "MemoryMax", Text: text}})
	}
	unit := func(kind change.Kind) change.Target { return change.Target{Kind: kind, Addr: "db.service"} }
	held := unitfiles.HeldFiles{Settings: []string{"MemoryMax"}}.String()
	quoted, err := json.Marshal(held)
	if err != nil {
		t.Fatal(err)
	}
	qdisc := request.Of(netshape.Change{Verb: tc.Add, What: netshape.Qdisc, Device: "eth0", Index: 2}, nil)
	type is = change.Change
	for name, c := range map[string]struct {
		step   Step
		fields []string
		older  string // what an earlier version wrote; "" where it is not read as the same
	}{
		"mkdir": {Step{Change: change.Of(dir.Target(), "", cgroup.There), Group: "a", Unit: "a.slice"},
			[]string{`"op":"mkdir"`, at, `"group":"a"`, `"unit":"a.slice"`, `"undo":"rmdir"`},
			`{"op":"mkdir","group":"a",` + at + `,"undo":"rmdir","reason":"","unit":"a.slice"}`},
		"rmdir": {Step{Change: change.Of(dir.Target(), cgroup.There, "")},
			[]string{`"op":"rmdir"`, at, `"undo":"mkdir"`}, `{"op":"rmdir",` + at + `,"undo":"mkdir"}`},
		"a line of a file": {Step{Change: change.Of(line.Target(), "1", "2")},
			[]string{`"op":"write"`, at, `"file":"io.max"`, `"key":"8:0"`, `"old":"1"`, `"new":"2"`, `"undo":"1"`},
			`{"op":"write",` + at + `,"file":"io.max","key":"8:0","old":"1","new":"2","undo":"1"}`},
		"a property": {Step{Unit: "db.service", Change: is{Target: dir.File("memory.max").Target(), Old: "max",
			New: "5", Do: limit("5"), Undo: limit("max")}},
			[]string{`"op":"write"`, at, `"file":"memory.max"`, `"set":[{"name":"MemoryMax","text":"5"}]`,
				`"unset":[{"name":"MemoryMax","text":"max"}]`, `"undo":"max"`},
			`{"op":"write",` + at + `,"file":"memory.max","old":"max","new":"5","undo":"max","unit":"db.service",` +
				`"set":[{"name":"MemoryMax","text":"5"}],"unset":[{"name":"MemoryMax","text":"max"}]}`},
		"a property of a new unit": {Step{Unit: "a.slice", Change: is{Target: dir.File("memory.max").Target(), New: "5",
			Do: limit("5")}},
			[]string{`"op":"write"`, `"set":[{"name":"MemoryMax","text":"5"}]`}, ""},
		"a disk": {Step{Change: change.Of(blockdev.QueueTarget("8:0", "scheduler"), "none", "bfq")},
			[]string{`"op":"write"`, `"file":"queue.scheduler"`, `"key":"8:0"`, `"undo":"none"`},
			`{"op":"write","dir":{"hierarchy":"unified","path":"/"},"file":"queue.scheduler","key":"8:0",` +
				`"old":"none","new":"bfq","undo":"none"}`},
		"move": {Step{Change: change.Of(cgroup.Membership(id, "cpu"), "/user", dir.Path), Name: "mysqld"},
			[]string{`"op":"move"`, at, who, `"old":"/user"`, `"undo":"/user"`},
			`{"op":"move",` + at + `,` + who + `,"old":"/user","undo":"/user"}`},
		"score": {Step{Change: change.Of(id.ScoreTarget(), "0", "5"), Name: "mysqld"},
			[]string{`"op":"oom_score_adj"`, who, `"old":"0"`, `"new":"5"`, `"undo":"0"`},
			`{"op":"oom_score_adj","dir":{"hierarchy":"","path":""},` + who + `,"old":"0","new":"5","undo":"0"}`},
		"drop-in": {Step{Change: change.Of(unit(unitfiles.KindDropIn), "", "Slice=a.slice")},
			[]string{`"op":"drop-in"`, `"unit":"db.service"`, `"target":{"kind":"drop-in","addr":"db.service"}`},
			`{"op":"drop-in","unit":"db.service","target":{"kind":"drop-in","addr":"db.service"},` +
				`"new":"Slice=a.slice"}`},
		"keep": {Step{Change: is{Target: unit(unitfiles.KindOverrides)}},
			[]string{`"op":"keep"`, `"unit":"db.service"`}, ""},
		"revert": {Step{Change: change.Of(unit(unitfiles.KindOverrides), "", held)},
			[]string{`"op":"revert"`, `"unit":"db.service"`, `"new":` + string(quoted)}, ""},
		"network": {Step{Change: qdisc},
			[]string{`"op":"network"`, `"target":{"kind":"network","addr":"eth0"}`, `"do":`}, ""},
		"a kind of its own": {Step{Change: change.Of(change.Target{Kind: "sysctl", Addr: "vm.swappiness"}, "60", "1")},
			[]string{`"op":"set"`, `"target":{"kind":"sysctl","addr":"vm.swappiness"}`, `"undo":"60"`},
			`{"op":"set","target":{"kind":"sysctl","addr":"vm.swappiness"},"old":"60","new":"1","undo":"60"}`},
	} {
		text, err := json.Marshal(c.step)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, field := range c.fields {
			if !strings.Contains(string(text), field) {
				t.Errorf("%s: %s lacks %s", name, text, field)
			}
		}
		for _, text := range []string{string(text), c.older} {
			var back Step
			if text == "" {
				continue
			}
			if err := json.Unmarshal([]byte(text), &back); err != nil || !reflect.DeepEqual(back, c.step) {
				t.Errorf("%s: %s\nis read as  %#v, %v\nand not as  %#v", name, text, back, err, c.step)
			}
		}
	}
}
