package attribution_test

import (
	"math"
	"strings"
	"testing"

	"bulkhead/internal/attribution"
	"bulkhead/internal/linux/idset"
	"bulkhead/internal/observe/top"
)

func of(t *testing.T, w *attribution.Window, group, resource string) (one attribution.Resource,
	blamed map[string]float64, r *attribution.Report) {
	t.Helper()
	r, err := attribution.Of(w, group)
	if err != nil {
		t.Fatal(err)
	}
	blamed = map[string]float64{}
	for _, one = range r.Resources {
		if one.Name != resource {
			continue
		}
		sum := 0.0
		for _, row := range one.Rows {
			blamed[string(row.Who)+" "+row.Group+row.Name] += row.Seconds
			sum += row.Seconds
		}
		if math.Abs(sum-one.Waited) > 1e-9 {
			t.Errorf("rows of %s sum up to %v, and %v was waited", resource, sum, one.Waited)
		}
		return one, blamed, r
	}
	t.Fatalf("no %s in %+v", resource, r)
	return one, nil, nil
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9 {
		t.Errorf("%s: %v, wanted %v", what, got, want)
	}
}

// Who sends most over an interface whose queue is full is to blame, as far as it was full; a limit of its own is nobody
// else's fault; and where nobody looked, nothing is known.
func TestNetwork(t *testing.T) {
	held := holders{}
	w := &attribution.Window{Holders: held.of, Groups: []attribution.Group{
		{Name: "db", Sent: map[string]attribution.Sent{"eth0": {Bytes: 1e6, Waited: 0.5}}},
		{Name: "db/backup", Sent: map[string]attribution.Sent{"eth0": {Bytes: 1e6, Waited: 0.3}}},
		{Name: "copy", Sent: map[string]attribution.Sent{"eth0": {Bytes: 6e6, Waited: 0.9}}},
		{Name: "quiet"}}}
	if one, _, _ := of(t, w, "db", "network"); one.Known || one.Source == "" {
		t.Errorf("nobody looked, and %+v", one)
	}
	w.Host.Links = map[string]attribution.Link{"eth0": {Bytes: 10e6, Queued: 0.8}}
	one, blamed, r := of(t, w, "db", "network")
	near(t, "waited", one.Waited, 0.5)
	near(t, "copy", blamed["group copy"], 0.5*0.8*0.6)
	near(t, "own load", blamed["own load "], 0.5*0.8*0.2)
	near(t, "outside", blamed["outside "], 0.5*0.8*0.2)
	near(t, "unexplained", blamed["unexplained "], 0.1)
	if !strings.HasPrefix(r.Verdict, "copy is the first suspect") || one.Rows[0].Command !=
		"bulkhead set copy:network.egress.max=24000kbit/s --for 1h --on eth0" {
		t.Errorf("%s %+v", r.Verdict, one.Rows[0])
	}
	held["db"] = []top.Holder{{Group: "db", Limit: top.Limit{Key: "network.egress.max", Device: "eth0",
		How: "drops"}}}
	_, blamed, _ = of(t, w, "db", "network")
	near(t, "own limit", blamed["own limit "], 0.5)
	w.Holders, w.Host.Links["eth0"] = nil, attribution.Link{Bytes: 10e6}
	_, blamed, _ = of(t, w, "db", "network")
	near(t, "unexplained where nothing queues here", blamed["unexplained "], 0.5)
}

// A limit on memory that groups share is divided among those below it; one of its own, or one above it that nobody else
// is below, is its own.
func TestSharedMemory(t *testing.T) {
	group := func(name string, faults float64) attribution.Group {
		return attribution.Group{Name: name, Faults: &faults, Pressure: map[string]float64{"memory": 0.4}}
	}
	w := &attribution.Window{Groups: []attribution.Group{group("all", 0), group("all/db", 100),
		group("all/greedy", 300), group("other", 5000)}}
	reached := func(g string) top.Holder {
		return top.Holder{Group: g, Limit: top.Limit{Key: "memory.max", How: "reached"}}
	}
	held := holders{"all/db": {reached("all")}}
	w.Holders = held.of
	_, blamed, r := of(t, w, "all/db", "memory")
	near(t, "greedy", blamed["group all/greedy"], 0.3)
	near(t, "own load", blamed["own load "], 0.1)
	if !strings.HasPrefix(r.Verdict, "all/greedy is the first suspect") {
		t.Error(r.Verdict)
	}
	held["all/db"] = []top.Holder{reached("all/db"), reached("all")}
	_, blamed, _ = of(t, w, "all/db", "memory")
	near(t, "own limit", blamed["own limit "], 0.4)
	held["all/db"] = []top.Holder{reached("all")}
	w.Groups = append(w.Groups[:2], w.Groups[3])
	_, blamed, _ = of(t, w, "all/db", "memory")
	near(t, "a limit above that nobody shares", blamed["own limit "], 0.4)
}

// What a group reads again, because others had its page cache taken, is theirs.
func TestRefaults(t *testing.T) {
	w := &attribution.Window{Holders: holders{"all/db": {{Group: "all",
		Limit: top.Limit{Key: "memory.max", How: "reached"}}}}.of,
		Groups: []attribution.Group{{Name: "all"},
			{Name: "all/db", Faults: new(100.0), Refaults: new(500.0), Tasks: &attribution.IO{ReadBytes: 1000 * 4096},
				Pressure: map[string]float64{"memory": 0.5, "io": 0.6},
				IO:       map[string]attribution.IO{"sda": {ReadBytes: 1000 * 4096, Reads: 1000}}},
			{Name: "all/greedy", Faults: new(1100.0)}}}
	_, blamed, _ := of(t, w, "all/db", "memory")
	near(t, "memory", blamed["group all/greedy"], 0.25)
	_, blamed, r := of(t, w, "all/db", "disk")
	near(t, "disk", blamed["group all/greedy"], 0.6*0.5*0.5)
	near(t, "its own", blamed["own load "], 0.6-0.6*0.5*0.5)
	if r.Suspects[1].Group != "all/greedy" || len(r.Suspects[1].Resources) != 2 {
		t.Errorf("%+v", r.Suspects)
	}
	w.Groups[1].DiskBlame = &attribution.DiskBlame{Service: 0.9, Own: 0.3}
	_, blamed, _ = of(t, w, "all/db", "disk")
	near(t, "disk, counted", blamed["group all/greedy"], 0.6*0.5*0.5)
	near(t, "its own, counted", blamed["own load "], 0.15*0.75)
	near(t, "the disk itself", blamed["disk itself "], 0.45*0.75)
}

// What runs outside is told by name as far as that is known, the rest is one row without a name.
func TestOutside(t *testing.T) {
	w := &attribution.Window{Host: attribution.Host{CPUs: 1, EachCPU: map[int]float64{0: 1}},
		Groups: []attribution.Group{{Name: "db", CPU: new(0.2), Waited: new(0.6), Threads: 1,
			EachCPU: map[int]float64{0: 0.2}}},
		Outsiders: []attribution.Outsider{{Name: "unit cron.service", CPU: 0.4}, {Name: "gzip (user a)", CPU: 0.2},
			{Name: "sshd (user root)", CPU: 0.001}}}
	_, blamed, r := of(t, w, "db", "cpu")
	whole := blamed["outside unit cron.service"] + blamed["outside gzip (user a)"] + blamed["outside "]
	near(t, "cron", blamed["outside unit cron.service"], whole/2)
	near(t, "gzip", blamed["outside gzip (user a)"], whole/4)
	w.Host.EachCPU[1], w.Outsiders[0].CPUs = 1, idset.New(1)
	if _, blamed, _ := of(t, w, "db", "cpu"); blamed["outside unit cron.service"] > 0 ||
		blamed["outside gzip (user a)"] <= 0 {
		t.Errorf("who may run on another CPU alone is blamed: %v", blamed)
	}
	if whole < 0.5 || len(r.Suspects) < 2 || !strings.HasPrefix(r.Verdict,
		"unit cron.service, which is outside all groups, is the first suspect") {
		t.Errorf("%v: %s", blamed, r.Verdict)
	}
}

// Where nobody looked at the connections of a group, nothing is known, and that is said: it is not that it waits for
// nothing.
func TestNetworkElsewhere(t *testing.T) {
	w := &attribution.Window{Groups: []attribution.Group{{Name: "db", Elsewhere: true}, {Name: "web"}}}
	w.Host.Links = map[string]attribution.Link{"eth0": {Bytes: 1e6, Queued: 1}}
	if one, _, _ := of(t, w, "db", "network"); one.Known || !strings.Contains(one.Source, "namespace") {
		t.Errorf("%+v", one)
	}
	if one, _, _ := of(t, w, "web", "network"); !one.Known {
		t.Errorf("%+v", one)
	}
	w.Groups[0].Sent = map[string]attribution.Sent{"eth0": {Bytes: 1e5, Waited: 0.5}}
	if one, _, _ := of(t, w, "db", "network"); !one.Known || one.Waited != 0.5 {
		t.Errorf("%+v", one)
	}
}
