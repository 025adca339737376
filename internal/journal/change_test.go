package journal

import (
	"encoding/json"
	"testing"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/change"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/tc"
	"bulkhead/internal/netshape"
	"bulkhead/internal/netshape/request"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
)

// Every form of a change that was ever written is read as the one that there is now, and that as itself.
func TestOlderChanges(t *testing.T) {
	dir := cgroup.Dir{Hierarchy: "cpu", Path: "/bulkhead/a"}
	id := procfs.ID{PID: 7, Start: 70}
	held := unitfiles.HeldFiles{Files: []systemd.Override{{Path: "/etc/x.conf", Text: []byte("y")}}}.String()
	limit := func(text string) string {
		return systemd.Assigned([]systemd.Assignment{{Name: "MemoryMax", Text: text}})
	}
	qdisc := netshape.Change{Verb: tc.Add, What: netshape.Qdisc, Device: "eth0", Index: 2}
	back := []netshape.Change{{Verb: tc.Delete, What: netshape.Qdisc, Device: "eth0", Index: 2}}
	const at = `"dir":{"hierarchy":"cpu","path":"/bulkhead/a"}`
	file := func(name string) change.Target { return dir.File(name).Target() }
	unit := func(kind change.Kind) change.Target { return change.Target{Kind: kind, Addr: "db.service"} }
	sysctl := change.Target{Kind: "sysctl", Addr: "vm.swappiness"}
	type is = change.Change
	for text, want := range map[string]Change{
		`{"seq":3,"op":"mkdir","group":"a",` + at + `,"undo":"rmdir","unit":"a.slice"}`: {
			Seq: 3, Group: "a", Unit: "a.slice", Change: is{Target: dir.Target(), New: "there"},
		},
		`{"op":"mkdir",` + at + `,"old":"there"}`: {Change: is{Target: dir.Target(), Old: "there", New: "there"}},
		`{"op":"rmdir",` + at + `}`:               {Change: is{Target: dir.Target(), Old: "there", Undo: "there"}},
		`{"op":"write",` + at + `,"file":"io.max","key":"8:0","old":"1","new":"2","undo":"1"}`: {
			Change: is{Target: file("io.max[8:0]"), Old: "1", New: "2", Undo: "1"},
		},
		`{"op":"write",` + at + `,"file":"memory.max","old":"max","new":"5","undo":"max","unit":"a.slice",` +
			`"set":[{"name":"MemoryMax","text":"5"}],"unset":[{"name":"MemoryMax","text":"max"}]}`: {
			Unit:   "a.slice",
			Change: is{Target: file("memory.max"), Old: "max", New: "5", Do: limit("5"), Undo: limit("max")},
		},
		`{"op":"write",` + at + `,"file":"cgroup.subtree_control","new":"cpu","undo":"-cpu"}`: {
			Change: is{Target: file("cgroup.subtree_control"), New: "cpu", Undo: "-cpu"},
		},
		`{"op":"move",` + at + `,"pid":{"pid":7,"start":70},"comm":"mysqld","old":"/user"}`: {
			Name:   "mysqld",
			Change: is{Target: cgroup.Membership(id, "cpu"), Old: "/user", New: dir.Path, Undo: "/user"},
		},
		`{"op":"oom_score_adj","pid":{"pid":7,"start":70},"comm":"mysqld","old":"0","new":"5","undo":"0"}`: {
			Name: "mysqld", Change: is{Target: id.ScoreTarget(), Old: "0", New: "5", Undo: "0"},
		},
		`{"op":"set","target":{"kind":"sysctl","addr":"vm.swappiness"},"old":"60","new":"1","undo":"60"}`: {
			Change: is{Target: sysctl, Old: "60", New: "1", Undo: "60"},
		},
		`{"op":"drop-in","unit":"db.service","new":"Slice=a.slice"}`: {
			Change: is{Target: unit(unitfiles.KindDropIn), New: "Slice=a.slice"},
		},
		`{"op":"keep","unit":"db.service",` + at + `,"overrides":[{"path":"/etc/x.conf","text":"eQ=="}]}`: {
			Change: is{Target: unit(unitfiles.KindOverrides), Old: held, New: held, Undo: held},
		},
		`{"op":"revert","unit":"db.service","overrides":[{"path":"/etc/x.conf","text":"eQ=="}]}`: {
			Change: is{Target: unit(unitfiles.KindOverrides), Old: held, Undo: held},
		},
		`{"op":"network","net":{"verb":"add","what":"qdisc","device":"eth0","index":2},` +
			`"net_undo":[{"verb":"delete","what":"qdisc","device":"eth0","index":2}]}`: {
			Change: request.Of(qdisc, back),
		},
	} {
		var c, again Change
		if err := json.Unmarshal([]byte(text), &c); err != nil || !sameChange(c, want) {
			t.Errorf("%s\nis  %+v, %v\nnot %+v", text, c, err, want)
		}
		data, err := json.Marshal(c)
		if err == nil {
			err = json.Unmarshal(data, &again)
		}
		if err != nil || !sameChange(again, c) {
			t.Errorf("%s\nwritten and read: %+v, %v", data, again, err)
		}
	}
}

func mkdir(d cgroup.Dir) Change { return of(d.Target(), "", cgroup.There) }
func rmdir(d cgroup.Dir) Change { return of(d.Target(), cgroup.There, "") }

func of(t change.Target, from, to string) Change {
	return Change{Change: change.Change{Target: t, Old: from, New: to}}
}

func write(d cgroup.Dir, file, from, to string) Change { return writeLine(d.File(file), from, to) }

// writeLine is a write of a line of a file.
func writeLine(f cgroup.File, from, to string) Change {
	c := of(f.Target(), from, to)
	c.Undo = from
	return c
}

func process(pid int) procfs.ID { return procfs.ID{PID: pid, Start: uint64(pid) * 10} }

func move(pid int, d cgroup.Dir, from string) Change {
	c := of(cgroup.Membership(process(pid), d.Hierarchy), from, d.Path)
	c.Name = "mysqld"
	return c
}

func score(pid int, from, to string) Change {
	c := of(process(pid).ScoreTarget(), from, to)
	c.Undo = from
	return c
}
