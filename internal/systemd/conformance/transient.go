package conformance

import (
	"slices"
	"strings"

	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitname"
)

var transientCases = []testCase{
	{"a slice", aSlice}, {"a slice in which units run", busySlice}, {"a keeper", aKeeper},
	{"what can be attached where", attachRules},
	{"a keeper that hands controllers down", handsDown},
	{"a scope", aScope}, {"a command", aCommand}, {"transient units that are refused", refusedTransients},
}

func aSlice(b *bench) {
	limit := systemd.Property{Name: "MemoryMax", Value: mib(128)}
	name := b.slice("a-b/c.d", limit)
	u := b.unit(name)
	dir, err := unitname.SliceDir(name)
	b.must(err)
	if u.ControlGroup != dir || !u.Active() || !u.Transient {
		b.Errorf("%+v, want it in %q", u, dir)
	}
	parent, err := unitname.ParentSlice(name)
	if b.must(err); u.Slice != parent || !b.unit(parent).Active() {
		b.Errorf("it lies in %q, want %q, and that active", u.Slice, parent)
	}
	b.holds(dir, b.memory(), "134217728")
	b.fails(b.StartTransient(b.ctx, systemd.Transient{Name: name, Properties: []systemd.Property{limit}}),
		systemd.ErrExists)

	// What is called persistent is as transient as the unit, and outlives a reload.
	b.must(b.SetProperties(b.ctx, name, systemd.Persistent, systemd.Property{Name: "MemoryMax", Value: mib(64)}),
		b.Reload(b.ctx))
	b.holds(dir, b.memory(), "67108864")
	overrides, err := b.Overrides(name)
	if b.must(err); len(overrides) != 1 || !strings.HasPrefix(overrides[0].Path, "/run/systemd/transient/") {
		b.Errorf("overrides %v", overrides)
	}
	b.must(b.RestoreOverrides(b.ctx, name, nil))
	b.holds(dir, b.memory(), "134217728") // what it was started with
	b.must(b.Stop(b.ctx, name))
	b.until("the slice's directory is gone", func() bool { _, err := b.Host.Read(dir, b.memory()); return err != nil })
	b.until("the slice is forgotten", func() bool { return b.unit(name).FragmentPath == "" })
	b.must(b.StartTransient(b.ctx, systemd.Transient{Name: name})) // the name is free again
}

func busySlice(b *bench) {
	name := b.slice("a")
	pid := b.Spawn(b.T)
	scope, err := unitname.ScopeName(b.Name, "a", "run1")
	b.must(err, b.StartTransient(b.ctx, systemd.Transient{Name: scope, Slice: name, PIDs: []int{pid}}))
	b.fails(b.Stop(b.ctx, name), systemd.ErrBusy)
	b.fails(b.Stop(b.ctx, b.Name+".slice"), systemd.ErrBusy) // the slice above is no better
	if !b.Host.Alive(pid) || !b.unit(name).Active() {
		b.Error("a refused stop stopped it")
	}
	b.Host.Kill(pid)
	b.gone(scope)
	b.must(b.Stop(b.ctx, name), b.Stop(b.ctx, b.Name+".slice"))
}

func aKeeper(b *bench) {
	slice := b.slice("db")
	keeper, err := unitname.KeeperName(b.Name, "db")
	b.must(err)
	description := systemd.Transient{Name: keeper, Slice: slice, Exec: b.Sleep}
	b.must(b.StartKeeper(b.ctx, description))
	u := b.unit(keeper)
	if !u.Active() || !u.Delegate || u.Slice != slice || u.KillMode != "process" || u.Type != "exec" {
		b.Errorf("%+v", u)
	}
	members := u.ControlGroup + "/members"
	b.must(b.Host.MakeGroup(members))
	pid := b.Spawn(b.T)
	b.must(b.Attach(b.ctx, keeper, "/members", pid))
	inPlace := func() {
		b.Helper()
		if !b.Host.Alive(pid) || b.Host.GroupOf(pid) != members {
			b.Fatalf("the member is in %q, alive %v, want it in %q", b.Host.GroupOf(pid), b.Host.Alive(pid), members)
		}
	}
	inPlace()
	for range 7 { // systemd's own limit would be five in ten seconds
		main := b.unit(keeper).MainPID
		b.Host.Kill(main)
		b.until("systemd sees that the keeper is gone", func() bool { return b.unit(keeper).ActiveState == "failed" })
		inPlace()
		b.fails(b.StartKeeper(b.ctx, description), systemd.ErrExists)
		b.must(b.Start(b.ctx, keeper))
		if again := b.unit(keeper); !again.Active() || again.MainPID == main || again.ControlGroup != u.ControlGroup {
			b.Fatalf("the repaired keeper: %+v", again)
		}
		inPlace()
	}
	b.must(b.Reload(b.ctx))
	inPlace()
	b.must(b.Stop(b.ctx, keeper)) // a release ends the keeper, and none of its members
	inPlace()
	b.Host.Kill(pid)
	b.gone(keeper)
	b.must(b.Stop(b.ctx, slice))
}

// subgroupSince is the release that starts a keeper's own process in a sub-group (DelegateSubgroup=).
const subgroupSince = 254

// handsDown: nothing may be put into a directory that hands controllers down, a new keeper neither. Below 254 a repair
// takes them back first; the members stay.
func handsDown(b *bench) {
	if b.Cgroups == 1 {
		b.Log("cgroup v1 hands nothing down")
		return
	}
	slice := b.slice("db")
	keeper, err := unitname.KeeperName(b.Name, "db")
	b.must(err, b.StartKeeper(b.ctx, systemd.Transient{Name: keeper, Slice: slice, Exec: b.Sleep}))
	u := b.unit(keeper)
	members := u.ControlGroup + "/members"
	b.must(b.Host.MakeGroup(members))
	pid := b.Spawn(b.T)
	b.must(b.Attach(b.ctx, keeper, "/members", pid))
	if b.Host.GroupOf(u.MainPID) == u.ControlGroup {
		b.must(b.Host.MakeGroup(u.ControlGroup+"/own"), b.Attach(b.ctx, keeper, "/own", u.MainPID))
	}
	const file = "cgroup.subtree_control"
	b.must(b.Host.Write(u.ControlGroup, file, "+memory"), b.Reload(b.ctx))
	b.holds(u.ControlGroup, file, "memory") // what is delegated, systemd leaves alone
	b.Host.Kill(u.MainPID)
	b.until("systemd sees that the keeper is gone", func() bool { return b.unit(keeper).ActiveState == "failed" })
	if err := b.Start(b.ctx, keeper); b.Version().AtLeast(subgroupSince) {
		b.must(err)
	} else {
		b.ended(err, systemd.ResultFailed)
		b.must(b.Host.Write(u.ControlGroup, file, "-memory"), b.Start(b.ctx, keeper))
	}
	if !b.unit(keeper).Active() || b.Host.GroupOf(pid) != members {
		b.Errorf("%+v, the member in %q", b.unit(keeper), b.Host.GroupOf(pid))
	}
}

func attachRules(b *bench) {
	slice := b.slice("db")
	keeper, err := unitname.KeeperName(b.Name, "db")
	b.must(err, b.StartKeeper(b.ctx, systemd.Transient{Name: keeper, Slice: slice, Exec: b.Sleep}))
	pid := b.Spawn(b.T)
	if err := b.Attach(b.ctx, keeper, "/absent", pid); err == nil {
		b.Error("a sub-group that is not there was taken")
	}
	b.fails(b.Attach(b.ctx, slice, "", pid), systemd.ErrInvalid)
	b.fails(b.Attach(b.ctx, b.service(b.Name+".service"), "", pid), systemd.ErrInvalid)
	b.fails(b.Attach(b.ctx, keeper, "", 0), systemd.ErrInvalid)
	b.fails(b.Attach(b.ctx, keeper, "", 1<<22-1), systemd.ErrNoProcess)
	b.fails(b.Attach(b.ctx, b.Name+"absent.service", "", pid), systemd.ErrNoUnit)
}

func aScope(b *bench) {
	slice := b.slice("reports")
	pid := b.Spawn(b.T)
	name, err := unitname.ScopeName(b.Name, "reports", "run-1")
	b.must(err, b.StartTransient(b.ctx, systemd.Transient{Name: name, Slice: slice, PIDs: []int{pid}, Delegate: true}))
	u := b.unit(name)
	if !u.Active() || u.Slice != slice || !u.Delegate || b.Host.GroupOf(pid) != u.ControlGroup {
		b.Errorf("%+v, its process in %q", u, b.Host.GroupOf(pid))
	}
	// A running unit stays in its slice.
	b.fails(b.SetProperties(b.ctx, name, systemd.Runtime, systemd.Property{Name: "Slice", Value: "system.slice"}),
		systemd.ErrNoProperty)
	b.fails(b.StartTransient(b.ctx, systemd.Transient{Name: name, Slice: slice, PIDs: []int{pid}}), systemd.ErrExists)
	b.Host.Kill(pid)
	b.gone(name)
	if _, err := b.Host.Read(u.ControlGroup, b.memory()); err == nil {
		b.Error("an empty scope left its directory")
	}
	if u := b.unit(name); u.LoadState != systemd.LoadNotFound {
		b.Errorf("%+v", u)
	}
}

func aCommand(b *bench) {
	slice := b.slice("reports")
	name := b.Name + "-reports-run.service"
	b.must(b.StartTransient(b.ctx, systemd.Transient{Name: name, Slice: slice, Exec: b.Sleep, Dir: "/",
		Env: []string{"A=b"}, Description: "odd % text"}))
	u := b.unit(name)
	if !u.Active() || b.Host.GroupOf(u.MainPID) != u.ControlGroup || u.Slice != slice {
		b.Errorf("%+v", u)
	}
	b.must(b.Stop(b.ctx, name))
	b.gone(name)
	// systemd counts a program as started once it forked for it: what it then finds shows in the unit, which is
	// collected.
	var collected []systemd.Property
	if b.Version().AtLeast(236) {
		collected = []systemd.Property{{Name: "CollectMode", Value: "inactive-or-failed"}}
	}
	b.must(b.StartTransient(b.ctx, systemd.Transient{Name: name, Slice: slice, Exec: []string{b.Absent},
		Properties: collected}))
	b.gone(name)
	b.ended(b.StartTransient(b.ctx, systemd.Transient{Name: name, Slice: slice, Exec: []string{b.Absent},
		Properties: append(collected, systemd.Property{Name: "Type", Value: "exec"})}), systemd.ResultFailed)
	b.gone(name)
}

func refusedTransients(b *bench) {
	slice := b.slice("a")
	scope, service := b.Name+"-a-x.scope", b.Name+"-a-x.service"
	pid := b.Spawn(b.T)
	b.fails(b.StartTransient(b.ctx, systemd.Transient{Name: scope, Slice: slice}), systemd.ErrInvalid)
	b.fails(b.StartTransient(b.ctx, systemd.Transient{Name: scope, Slice: slice, PIDs: []int{1<<22 - 1}}),
		systemd.ErrNoProcess)
	b.fails(b.StartTransient(b.ctx, systemd.Transient{Name: scope, Slice: "noslice", PIDs: []int{pid}}),
		systemd.ErrInvalid)
	b.fails(b.StartTransient(b.ctx, systemd.Transient{Name: service, Slice: slice}), systemd.ErrInvalid)
	unknown := []systemd.Property{{Name: "NoSuchThing", Value: uint64(1)}}
	b.fails(b.StartTransient(b.ctx, systemd.Transient{Name: service, Slice: slice, Exec: b.Sleep, Properties: unknown}),
		systemd.ErrNoProperty)
	b.fails(b.StartTransient(b.ctx, systemd.Transient{Name: b.Name + "-x.slice", Properties: unknown}),
		systemd.ErrNoProperty)
	units, err := b.Units(b.ctx)
	b.must(err)
	for _, name := range []string{scope, service, b.Name + "-x.slice"} {
		if slices.ContainsFunc(units, func(s systemd.Status) bool {
			return s.Name == name &&
				s.ActiveState != "inactive"
		}) {
			b.Errorf("%s was made all the same", name)
		}
	}
	_ = b.service(b.Name + ".service")
	b.fails(b.StartTransient(b.ctx, systemd.Transient{Name: b.Name + ".service", Exec: b.Sleep}), systemd.ErrExists)
}
