package parse

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/dblogin"
	"bulkhead/internal/policy"
	"bulkhead/internal/policy/yamlform"
)

// sloModes are the modes of the loop.
var sloModes = []string{"off", "advise", "act"}

// sloKeys are the limits and weights that the loop may lower.
var sloKeys = []string{string(policy.KeyCPUWeight), string(policy.KeyCPULimit), string(policy.KeyIOReadBandwidth),
	string(policy.KeyIOReadIOPS), string(policy.KeyIOWriteBandwidth), string(policy.KeyIOWriteIOPS)}

// longestTarget is the longest time that a target may be.
const longestTarget = time.Minute

// sloPlaces are where names of groups stand below `slo:`.
type sloPlaces struct{ squeeze, within map[string]policy.Pos }

// groupSLOKey is `slo:` of a group.
func groupSLOKey() yamlform.FormKey[policy.Group] {
	o := yamlform.Form[policy.SLO]{
		Name: "what a database is to keep",
		Elsewhere: map[string]string{"mode": "write it at the top of the file: `slo: {mode: act}`",
			"squeeze": "write it at the top of the file: `slo: {squeeze: [reports]}`",
			"within":  "write it at the top of the file: `slo: {within: {reports: {cpu.limit: 0.2..2}}}`"},
		Keys: []yamlform.FormKey[policy.SLO]{
			{
				Name: "p95",
				Doc: "The longest time that 95 % of the statements may take, as the server itself counts it: MySQL " +
					"8, MariaDB with query_response_time, Redis 7. It needs dsn.",
				Schema: policy.JSONSchema{"type": "string", "examples": []any{"20ms"}}, Read: readTime,
			},
			{
				Name: "heartbeat",
				Doc: "The longest time that a small question may take, which the database is asked five times a " +
					"second: its p95 over ten seconds. It needs dsn.",
				Schema: policy.JSONSchema{"type": "string", "examples": []any{"20ms"}}, Read: readTime,
			},
			{
				Name: "waits", Doc: "The most of its time that the database may wait for CPUs, disks or memory.",
				Schema: policy.PercentSchema,
				Read: func(v yamlform.Item, s *policy.SLO) {
					n, ok := v.Percent()
					if ok && n == 0 {
						v.Fail("write what it may wait: 5%", "slo.waits: every database waits for something")
						return
					}
					if ok {
						sloTarget(v, s, n)
					}
				},
			},
			{
				Name: "work",
				Doc: "The least work in a second, by the database's own counter: statements of MySQL and MariaDB, " +
					"transactions of PostgreSQL, commands of Redis. It needs dsn.",
				Schema: policy.JSONSchema{"type": "string", "pattern": workPattern, "examples": []any{"500/s"}},
				Read:   readWork,
			},
			{
				Name: "dsn",
				Doc: "The database that is asked: mysql://, postgres://, redis:// or unix://. In a template it may " +
					"have placeholders: ?socket={socket}.",
				Schema: policy.JSONSchema{"type": "string",
					"examples": []any{"mysql://bulkhead@localhost/?socket={socket}"}},
				Read: func(v yamlform.Item, s *policy.SLO) {
					text, ok := v.Text()
					if !ok {
						return
					}
					filled := strings.NewReplacer("{port}", "1", "{socket}", "/s").Replace(text)
					if _, err := dblogin.Parse(policy.Placeholder.ReplaceAllString(filled, "x")); err != nil {
						v.Fail("write mysql://USER@localhost/?socket=/run/mysqld/mysqld.sock, postgres://…, "+
							"redis://… or unix://…", "slo.dsn: %v", err)
					}
					s.DSN = text
				},
			},
		},
	}
	return yamlform.FormKey[policy.Group]{
		Name: "slo", Doc: "What the group's database is to keep, for which the loop squeezes groups beside it.",
		Schema: o.Schema(),
		Read: func(v yamlform.Item, g *policy.Group) {
			s := &policy.SLO{Pos: v.Pos()}
			if o.Read(v, "slo.", s) && soundSLO(v, s) {
				g.SLO = s
			}
		},
	}
}

// soundSLO says whether a target has what it takes.
func soundSLO(v yamlform.Item, s *policy.SLO) bool {
	switch {
	case s.Signal == "":
		v.Fail("write one of p95, heartbeat, waits and work: `slo: {waits: 5%}`", "slo: nothing is to be kept")
	case s.Signal == "waits" && s.DSN != "":
		v.Fail("take dsn out", "slo: for waits no database is asked")
	case s.Signal != "waits" && s.DSN == "":
		v.Fail("add dsn: `dsn: \"mysql://bulkhead@localhost/?socket=/run/mysqld/mysqld.sock\"`",
			"slo: to know its %s the database must be asked", s.Signal)
	default:
		return true
	}
	return false
}

// readTime reads the longest time of something.
func readTime(v yamlform.Item, s *policy.SLO) {
	text, ok := v.Text()
	if !ok {
		return
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 100*time.Microsecond || d > longestTarget {
		v.Fail("write milliseconds or seconds: 20ms", "%s: %q is not a time from 100µs to %s", v.Name(), text,
			longestTarget)
		return
	}
	sloTarget(v, s, d.Seconds())
}

// readWork reads the least work in a second.
func readWork(v yamlform.Item, s *policy.SLO) {
	text, ok := v.Text()
	if !ok {
		return
	}
	m := workRegexp.FindStringSubmatch(text)
	if m == nil {
		v.Fail("write how much in a second: 500/s", "slo.work: %q is no rate of work", text)
		return
	}
	n, err := strconv.ParseFloat(m[1], 64)
	if err != nil || n <= 0 {
		v.Fail("write how much in a second: 500/s", "slo.work: %q is no work at all", text)
		return
	}
	sloTarget(v, s, n)
}

// workPattern is a rate of work.
const workPattern = `^([0-9]+(\.[0-9]+)?)/s$`

var workRegexp = regexp.MustCompile(workPattern)

// sloTarget takes the one target of a database.
func sloTarget(v yamlform.Item, s *policy.SLO, value float64) {
	name := v.Name()[strings.LastIndexByte(v.Name(), '.')+1:]
	if s.Signal != "" {
		v.Fail("keep one of them", "slo: %s and %s: a database has one target", s.Signal, name)
		return
	}
	s.Signal, s.Value = name, value
}

// sloKey is `slo:` at the top of the file.
func sloKey() yamlform.FormKey[document] {
	o := sloForm()
	return yamlform.FormKey[document]{
		Name: "slo", Doc: "How far bulkhead goes to keep what databases are promised.", Schema: o.Schema(),
		Read: func(v yamlform.Item, d *document) { o.Read(v, "slo.", d) },
	}
}

func sloForm() yamlform.Form[document] {
	below := "write it below the group: `groups: {mysql3306: {slo: {…}}}`"
	return yamlform.Form[document]{
		Name:      "slo",
		Elsewhere: map[string]string{"heartbeat": below, "waits": below, "work": below, "dsn": below, "p95": below},
		Keys: []yamlform.FormKey[document]{
			{
				Name: "mode",
				Doc: "off: nothing is watched; advise: says what it would do (default); act: lowers limits of the " +
					"groups in squeeze for a time.", Schema: policy.JSONSchema{"enum": sloModes},
				Read: func(v yamlform.Item, d *document) {
					d.slo.Mode, _ = v.Word(sloModes...)
				},
			},
			{
				Name: "squeeze",
				Doc: "Groups that may be squeezed, by their paths as written; never a database. Unless named: each " +
					"of role batch or helper.",
				Schema: yamlform.ListOf(policy.JSONSchema{"type": "string", "minLength": 1}),
				Read: func(v yamlform.Item, d *document) {
					d.slo.Squeeze, d.sloPlaces.squeeze = []string{}, map[string]policy.Pos{}
					for _, item := range v.Items("write a list: `squeeze: [reports]`") {
						if text, ok := item.Text(); ok {
							d.slo.Squeeze, d.sloPlaces.squeeze[text] = append(d.slo.Squeeze, text), item.Pos()
						}
					}
				},
			},
			{
				Name: "within",
				Doc: "How far limits may go, by group: {reports: {cpu.limit: 0.2..2}}. The lowest is the floor. " +
					"Where none is named it is 0.05 cores, or 5 % of a disk limit; of role helper half of the CPUs " +
					"that it wants, or of the disk limit. Of a weight it is idle; that of a helper stays where " +
					"none is named.",
				Schema: policy.JSONSchema{"type": "object", "additionalProperties": policy.JSONSchema{"type": "object",
					"propertyNames": policy.JSONSchema{"enum": sloKeys},
					"additionalProperties": policy.JSONSchema{"type": "string",
						"examples": []any{"0.2..2", "10MB/s.."}}}},
				Read: func(v yamlform.Item, d *document) {
					d.slo.Within, d.sloPlaces.within = map[string]map[policy.Key]policy.Bound{}, map[string]policy.Pos{}
					for _, e := range v.Entries("") {
						d.slo.Within[e.Name], d.sloPlaces.within[e.Name] = readWithin(e.Item), e.Key.Pos()
					}
				},
			},
		},
	}
}

// readWithin reads the bounds of one group.
func readWithin(v yamlform.Item) map[policy.Key]policy.Bound {
	all := map[policy.Key]policy.Bound{}
	for _, e := range v.Entries("slo.within.") {
		if !slices.Contains(sloKeys, e.Name) {
			e.Key.Fail(yamlform.DidYouMean(e.Name, sloKeys, "write one of "+yamlform.JoinWords(sloKeys)),
				"slo.within: %q is no limit that the loop lowers", e.Name)
			continue
		}
		if b, ok := readBound(e.Item, policy.LimitOf(policy.Key(e.Name))); ok {
			all[policy.Key(e.Name)] = b
		}
	}
	return all
}

// checkSLO holds the names below `slo:` against the groups.
func checkSLO(p *policy.Policy, at sloPlaces, r *yamlform.Report) {
	known := newPaths(p.Groups)
	var databases []string
	policy.EachGroup(p.Groups, func(g *policy.Group) {
		if g.Role == policy.RoleDatabase || g.Each != nil || g.SLO != nil {
			databases = append(databases, g.Path)
		}
	})
	for _, name := range p.SLO.Squeeze {
		known.check(name, "slo.squeeze", at.squeeze[name], r)
		if slices.ContainsFunc(databases, func(one string) bool { return policy.Covers([]string{name}, one) }) {
			r.Fail(at.squeeze[name], "name groups beside it: its backup, reports",
				"slo.squeeze: group %s is a database, or has one below it, and the loop never squeezes one", name)
		}
	}
	for name := range p.SLO.Within {
		known.check(name, "slo.within", at.within[name], r)
		if p.SLO.Squeeze != nil && !slices.Contains(p.SLO.Squeeze, name) {
			r.Fail(at.within[name], "add it to squeeze, or take it out", "slo.within: group %s is not in squeeze", name)
		}
	}
}
