package scenario

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"
)

// The quantities of the machine that expressions may use.
var machineQuantities = []string{"cpus", "nodes", "memory", "disk_free"}

func machineQuantity(name string) bool { return slices.Contains(machineQuantities, name) }

// Figures are the words in which an expression of `shape:` ends: ARM.FIGURE, ARM.LOAD.FIGURE, ARM.GROUP.FIGURE, and
// each with the name of a phase behind the arm's.
var (
	loadFigures = []string{
		"tps", "mean", "p50", "p95", "p99", "p999", "longest", "within_10ms", "time_50_to_100ms", "isolation",
		"isol01", "impact", "bytes", "transactions", "holds_after", "variation",
	}
	groupFigures = []string{
		"cpu", "memory", "memory_peak", "swap", "oom_kills", "throttled", "read", "written", "read_ops", "write_ops",
		"cpu_pressure", "memory_pressure", "io_pressure", "conservation",
		"sent", "received", "packets_sent", "packets_received", "wire_out", "wire_in", "drops",
		"page_tables", "page_faults", "page_size", "copied", "fork", "blocked",
	}
	hostFigures = []string{"load", "load_level", "blocked", "idle", "busy", "memory_free"}
)

// nodeOf gives the number of the NUMA node that a figure of a database is about: node0, node1, … are how much of its
// memory is there, in percent.
func nodeOf(figure string) (number int, is bool) {
	digits, is := strings.CutPrefix(figure, "node")
	number, err := strconv.Atoi(digits)
	return number, is && err == nil && number >= 0 && strconv.Itoa(number) == digits
}

// Again is the name of the second run of the control arm in a round.
const Again = "again"

// check looks at the file as a whole.
func (r *reader) check(i yamlform.Item) {
	s := r.s
	r.cells(i)
	for _, key := range []string{"version", "name", "arms"} {
		if !i.Has(key) && (key != "arms" || s.Matrix == nil) {
			i.Fail("a scenario has version, name, databases, loads and arms; `bulkhead bench list` names those that "+
				"come with it", "%s is missing", key)
		}
	}
	if s.Control == "" && len(s.Arms) > 0 {
		s.Control = s.Arms[0].Name
	}
	r.names(i)
	for _, u := range r.uses {
		r.known(u)
	}
	for name, item := range r.at {
		// A name alone may stand for a text, so it is filled with one digit, which is good as a number too.
		filled := fillForCheck(s.Policies[name])
		_, err := parse.Policy([]policy.Source{{Path: item.Pos().File, Text: filled}})
		var problems policy.Problems
		errors.As(err, &problems)
		item.Embed(filled, problems)
	}
	r.whatNeedsWhat(i)
}

// fillForCheck makes a policy that can be parsed: the values do not matter, the lines do.
func fillForCheck(t Template) string {
	var b strings.Builder
	for _, p := range t.parts {
		b.WriteString(p.text)
		switch {
		case p.hole.Empty():
		case strings.HasPrefix(p.name, "disk"):
			b.WriteString("/var/tmp")
		case p.name == "nic":
			b.WriteString("eth0")
		default:
			b.WriteString("1")
		}
	}
	return b.String()
}

// names wants every name once: expressions tell loads, groups and phases by it alone.
func (r *reader) names(i yamlform.Item) {
	for _, l := range r.s.Loads {
		if slices.Contains(r.s.Groups(), l.Name) && l.Group != l.Name {
			i.Fail("give one of them another name", "%q is a load and a group", l.Name)
		}
	}
	for _, a := range r.s.Arms {
		if a.Name == Again {
			i.Fail("give the arm another name", "the second run of the control arm is called %q", Again)
		}
	}
}

// known says what is wrong with a name that nothing in the file has.
func (r *reader) known(u use) {
	var names []string
	s := r.s
	switch u.kind {
	case "database":
		for _, d := range s.Databases {
			names = append(names, d.Name)
		}
	case "neighbour":
		for _, n := range s.Neighbours {
			names = append(names, n.Name)
		}
	case "load":
		for _, l := range s.Loads {
			names = append(names, l.Name)
		}
	case "arm":
		for _, a := range s.Arms {
			names = append(names, a.Name)
		}
	case "peer":
		names = slices.Sorted(maps.Keys(s.Peers))
	case "policy":
		names = slices.Sorted(maps.Keys(s.Policies))
	case "policy or none":
		names = append(slices.Sorted(maps.Keys(s.Policies)), "none")
	case "quantity":
		names = r.quantities()
	case "value":
		names = append(r.quantities(), r.textNames()...)
	case "figure":
		r.figure(u)
		return
	}
	if !slices.Contains(names, u.name) {
		hint := "there is none"
		if len(names) > 0 {
			hint = "there are " + strings.Join(names, ", ")
		}
		u.item.Fail(hint, "%s", u.describe())
	}
}

func (r *reader) quantities() []string {
	names := slices.Clone(machineQuantities)
	for _, q := range r.s.Scale {
		names = append(names, q.Name)
	}
	return names
}

// textNames are the texts that a policy or a peer's file may use.
func (r *reader) textNames() []string {
	names := []string{"disk", "disk.number"}
	if r.s.Wire {
		names = append(names, "nic")
	}
	for _, l := range r.s.Loads {
		if l.Program == "iperf3" {
			names = append(names, "port."+l.Name)
		}
	}
	for _, d := range r.s.Databases {
		names = append(names, "port."+d.Name, "socket."+d.Name, "client."+d.Name)
	}
	return names
}

// figure wants ARM[.PHASE][.WHO].FIGURE, or a quantity of the scale.
func (r *reader) figure(u use) {
	if slices.Contains(r.quantities(), u.name) {
		return
	}
	parts := strings.Split(u.name, ".")
	arm, found := r.s.ArmNamed(parts[0])
	if parts[0] == Again {
		arm, found = r.s.ArmNamed(r.s.Control)
	}
	switch {
	case len(parts) < 2:
		u.item.Fail("write ARM.FIGURE, such as "+r.example(), "%q is neither a quantity nor a figure", u.name)
		return
	case !found:
		u.kind, u.name = "arm", parts[0]
		r.known(u)
		return
	}
	rest := parts[1:]
	if slices.ContainsFunc(arm.Phases, func(p Phase) bool { return p.Name == rest[0] }) && len(rest) > 1 {
		rest = rest[1:]
	}
	known := slices.Concat(loadFigures, hostFigures)
	if len(rest) == 2 {
		known = nil
		if slices.ContainsFunc(r.s.Loads, func(l Load) bool { return l.Name == rest[0] }) {
			known = append(known, loadFigures...)
		}
		if slices.Contains(r.s.Groups(), rest[0]) ||
			slices.ContainsFunc(r.s.Databases, func(d Database) bool { return d.Name == rest[0] }) {
			known = append(known, groupFigures...)
		}
		if r.node(u, rest[0], rest[1]) {
			return
		}
		if known == nil {
			u.item.Fail("a figure is of a load, a database or a group", "%q in %q is none of them", rest[0], u.name)
			return
		}
	}
	if len(rest) > 2 || !slices.Contains(known, rest[len(rest)-1]) {
		hint := "figures here: " + strings.Join(known, ", ")
		if len(rest) == 2 {
			hint += "; of a database also node0, node1, …"
		}
		u.item.Fail(hint, "figure %q is not known", strings.Join(rest, "."))
	}
}

// node says whether a figure is that of a NUMA node, and that the scenario must need a machine with it.
func (r *reader) node(u use, database, figure string) bool {
	number, is := nodeOf(figure)
	if !is || !slices.ContainsFunc(r.s.Databases, func(d Database) bool { return d.Name == database }) {
		return false
	}
	if number >= r.s.Needs.NUMA || r.s.Needs.NUMA < 2 {
		u.item.Fail(fmt.Sprintf("write needs: {numa: %d}", max(2, number+1)),
			"figure %q is of a machine with more NUMA nodes than the scenario needs", u.name)
	}
	return true
}

func (r *reader) example() string {
	if len(r.s.Arms) > 0 {
		return r.s.Arms[0].Name + ".tps"
	}
	return "alone.tps"
}

// whatNeedsWhat checks what goes together.
func (r *reader) whatNeedsWhat(i yamlform.Item) {
	s := r.s
	for _, d := range s.Databases {
		if d.Engine == "" {
			i.Fail("write engine: mariadb, postgresql or redis", "database %q has no engine", d.Name)
		}
	}
	r.loads(i)
	r.claims(i)
	for _, name := range slices.Sorted(maps.Keys(s.Peers)) {
		if p := s.Peers[name]; len(p.Commands) > 0 && !s.Wire {
			i.Fail("write wire: true: commands work on the run's own wire alone",
				"peer %q has commands, and there is no wire", name)
		}
	}
	for _, n := range s.Neighbours {
		if (n.Kind == "backup" || n.Kind == "query") && n.On == "" {
			i.Fail("write on: and the name of a database", "neighbour %q has no database", n.Name)
		}
		r.exporter(i, n)
	}
	r.arms(i)
	for _, x := range s.Shape {
		if x.Measure.Empty() || x.Least.Empty() && x.Most.Empty() && x.Claim.Empty() {
			i.Fail("write measure: and least:, most:, or what the document has: figure: or direction:",
				"shape %q says not what to measure or not how much it must be", x.What)
		}
	}
}

// exporters says by the name of a program that is scraped which engines it asks; none needs no database.
var exporters = map[string][]string{
	"prometheus-node-exporter": nil, "prometheus-mysqld-exporter": {"mariadb"},
	"prometheus-postgres-exporter": {"postgresql"}, ServeExporter: nil,
}

// ServeExporter is bulkhead's own exporter, which shows what the arm's agent samples.
const ServeExporter = "bulkhead"

// Exporters names the programs that a neighbour may scrape.
func Exporters() []string { return slices.Sorted(maps.Keys(exporters)) }

// exporter checks that one which is scraped has what it tells of.
func (r *reader) exporter(i yamlform.Item, n Neighbour) {
	d, _ := r.s.DatabaseNamed(n.On)
	switch engines := exporters[n.Program]; {
	case n.Kind != "exporter" && (n.Program != "" || !n.Every.Empty()):
		i.Fail("write kind: exporter", "neighbour %q has a program or an interval, and is no exporter", n.Name)
	case n.Kind == "exporter" && n.Program == "":
		i.Fail("write program: and one of "+strings.Join(Exporters(), ", "), "neighbour %q has no program", n.Name)
	case engines != nil && !slices.Contains(engines, d.Engine):
		i.Fail("write on: and the name of a "+strings.Join(engines, " or "), "neighbour %q: %s has no database to ask",
			n.Name, n.Program)
	}
}

// arms checks what arms set, and that an agent runs where its figures are scraped.
func (r *reader) arms(i yamlform.Item) {
	for _, a := range r.s.Arms {
		for _, s := range a.Settings {
			if s.On == "" || s.Set == "" || s.Back == "" {
				i.Fail(`write {on: db, set: "SET GLOBAL …", back: "SET GLOBAL …"}`,
					"a setting of arm %q says not where, what, or how it is taken back", a.Name)
			}
			if d, _ := r.s.DatabaseNamed(s.On); d.Engine == "redis" {
				i.Fail("a setting is SQL", "arm %q sets something in %q, which is a Redis", a.Name, s.On)
			}
		}
		for _, n := range r.s.Neighbours {
			if n.Program == ServeExporter && slices.Contains(a.With, n.Name) && !a.Agent {
				i.Fail("write agent: true, and a policy", "arm %q scrapes bulkhead, and no agent runs", a.Name)
			}
		}
	}
}

// claims checks what a scenario says of the document that it repeats.
func (r *reader) claims(i yamlform.Item) {
	switch m := r.s.Mechanism; {
	case r.s.Document != "" && m.Document == "":
		i.Fail("write mechanism: {document: …}, and ours: and why: where it is not the same here",
			"the scenario repeats a document and does not say by what that limits")
	case m.Ours != "" && m.Why == "":
		i.Fail("write why: in mechanism:", "the scenario limits by other means than the document and does not say why")
	}
	for _, x := range r.s.Shape {
		switch c := x.Claim; {
		case !c.Figure.Empty() && c.Direction != "":
			i.Fail("leave direction: out: the figure has one", "shape %q has a figure and a direction", x.What)
		case c.Empty() && (!c.Within.Empty() || !c.None.Empty() || c.Because != "" || x.By != ""):
			i.Fail("write figure: or direction:", "shape %q says nothing of what the document measured", x.What)
		}
	}
}

// loads checks that there is something to measure, and that programs fit what they load.
func (r *reader) loads(i yamlform.Item) {
	s := r.s
	if len(s.Arms) > 0 && len(s.Loads) == 0 {
		i.Fail("write at least one load", "there is no load, so nothing can be measured")
	}
	for _, l := range s.Loads {
		switch {
		case l.Program == "":
			i.Fail("write program: and one of "+strings.Join(Programs(), ", "), "load %q has no program", l.Name)
		case OnWire(l.Program) && !s.Wire:
			i.Fail("write wire: true, and the run makes a network of its own", "load %q: %s needs a wire", l.Name,
				l.Program)
		case l.Remote && (!s.Wire || l.Program != "sysbench"):
			i.Fail("write wire: true, and program: sysbench", "load %q is remote: it needs a wire and goes over TCP",
				l.Name)
		case l.Program == "iperf3" && l.Flow == "":
			i.Fail("write flow: out or flow: in", "load %q says not which way it sends", l.Name)
		case engineOf[l.Program] != nil && l.On == "":
			i.Fail("write on: and the name of a database", "load %q has no database", l.Name)
		case engineOf[l.Program] != nil:
			d, _ := s.DatabaseNamed(l.On)
			if want := engineOf[l.Program]; d.Engine != "" && !slices.Contains(want, d.Engine) {
				i.Fail("it is for "+strings.Join(want, " and "), "load %q: %s does not load %s", l.Name, l.Program,
					d.Engine)
			}
		}
	}
}

// engineOf says which engines a load program speaks to; none needs no database.
var engineOf = map[string][]string{
	"sysbench": {"mariadb", "postgresql"}, "pgbench": {"postgresql"}, "redis-benchmark": {"redis"}, "fio": nil,
	"iperf3": nil, "heartbeat": nil, "sleeper": nil, "login": nil,
}

// Programs names the programs that can be a load.
func Programs() []string { return slices.Sorted(maps.Keys(engineOf)) }

// OnWire says whether a load program goes over the wire between the run's namespaces.
func OnWire(program string) bool { return program == "iperf3" || program == "heartbeat" }
