package convert_test

import (
	"fmt"
	"strings"
	"testing"

	"bulkhead/internal/policy/parse"
	"bulkhead/internal/policy/yamlform"

	"pgregory.net/rapid"

	"bulkhead/internal/convert"
	"bulkhead/internal/convert/libcgroup"
	"bulkhead/internal/convert/unitfile"
	"bulkhead/internal/policy"
)

// import(export(p)) is p, for any policy: libcgroup's form for either version of control groups, and systemd's.
func TestImportOfAnExportIsTheSamePolicy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := drawPolicy(t)
		p, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: text}})
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		back(t, p)
	})
}

// The policies that the repository ships, too.
func TestImportOfAnExportOfExamples(t *testing.T) {
	for _, file := range []string{"../../examples/scylladb.yaml", "../policy/resolve/testdata/good/owner.yaml",
		"../policy/resolve/testdata/good/every-key.yaml", "../policy/resolve/testdata/good/network.yaml",
		"../policy/resolve/testdata/good/design.yaml"} {
		sources, err := yamlform.Read(file)
		if err != nil {
			t.Fatal(err)
		}
		p, err := parse.Policy(sources)
		if err != nil {
			t.Fatal(err)
		}
		back(t, p)
	}
}

func drawPolicy(t *rapid.T) string {
	var b strings.Builder
	b.WriteString("version: 1\n")
	if rapid.Bool().Draw(t, "host") {
		fmt.Fprintf(&b, "host: {root: %s, weight: %d, others: {weight: 10, limit: 1.5}, "+
			"reserve: {cpu: 0.5, memory: %s}%s}\n",
			drawOne(t, "root", "bulkhead", "shop", "a-b"), rapid.IntRange(1, 10000).Draw(t, "weight"),
			drawOne(t, "kept", "1GiB", "5%"), drawOne(t, "tune", "", ", tune: {vm.swappiness: 1, thp: madvise, "+
				"net/ipv4/conf/eth0.1/rp_filter: 2, disk vda: {scheduler: none, read_ahead_kb: 128}, 'disk "+
				"/dev/mapper/a': {scheduler: none}, unit mysql.service: {LimitNOFILE: 65535}, mount /: {atime: "+
				"noatime}, kernel: {psi: 1}}"))
	}
	if rapid.Bool().Draw(t, "agent") {
		b.WriteString("agent: {fast_moves: on}\n")
	}
	b.WriteString("groups:\n")
	for i := range rapid.IntRange(1, 4).Draw(t, "groups") {
		if rapid.IntRange(0, 5).Draw(t, "kind") == 0 {
			fmt.Fprintf(&b, "  't%d-{port}':\n    each: {engine: mysql}\n    role: database\n    slo: {work: 12.5/s, "+
				"dsn: 'mysql://b@localhost/?socket={socket}'}\n    groups:\n      "+
				"backup: {role: helper, match: [{exe: dump, cmdline: '--port={port}'}]}\n", i)
			continue
		}
		drawGroup(t, &b, fmt.Sprintf("%s%d", drawOne(t, "name", "g", "my-db.", "A_b"), i), 1)
	}
	if rapid.Bool().Draw(t, "schedule") {
		b.WriteString("  last: {}\nschedules:\n  - {name: month-end, when: '0 22 28-31 * *', zone: Europe/Vienna, " +
			"for: 6h, except: [12-24, sun], set: {last: {cpu: {limit: 2.5}, memory: {max: 4%}}}}\n")
	}
	if rapid.Bool().Draw(t, "promises") {
		drawPromises(t, &b)
	}
	return b.String()
}

// drawPromises adds what a database is to keep, what is watched after a change, and which snapshots are kept.
func drawPromises(t *rapid.T, b *strings.Builder) {
	whole := b.String()
	b.Reset()
	head, groups, _ := strings.Cut(whole, "groups:\n")
	b.WriteString(head)
	percent := func(label string) string {
		return fmt.Sprintf("%d.%d", rapid.IntRange(0, 99).Draw(t, label), rapid.IntRange(0, 9999).Draw(t, label))
	}
	signal := drawOne(t, "signal", "waits", "work", "p95", "heartbeat")
	target := map[string]string{"waits": "0.5%", "work": "0.1/s", "p95": "20ms", "heartbeat": "1.0000001s"}[signal]
	dsn := ", dsn: 'mysql://b@localhost/?socket=/s'"
	if signal == "waits" {
		target, dsn = percent("waits")+"1%", ""
	}
	fmt.Fprintf(b, "slo: {mode: %s%s}\n", drawOne(t, "mode", "off", "act"), drawOne(t, "squeeze", "", ", squeeze: []",
		", squeeze: [reports], within: {reports: {cpu.limit: 0.2..2, io.read.bandwidth: 10MB/s..}}"))
	fmt.Fprintf(b, "guard: {window: %dms, groups: {oltp: {oom_kills: 0, throttled: %s%%%s}}}\n",
		rapid.IntRange(1000, 9000).Draw(t, "window"), percent("throttled"), drawOne(t, "dsn", "",
			", memory_pressure: 100%, throughput_falls: 7%, dsn: 'redis://localhost/'"))
	fmt.Fprintf(b, "snapshots: {mysql3306: {keep: 7, older: 14d}, '*': {older: 36h}}\n")
	fmt.Fprintf(b, "groups:\n  oltp: {slo: {%s: %s%s}}\n  reports: {role: batch}\n%s", signal, target, dsn, groups)
}

func drawGroup(t *rapid.T, b *strings.Builder, name string, depth int) {
	pad := strings.Repeat("    ", depth) // two levels of the file for each of the groups
	fmt.Fprintf(b, "%s%s:\n", pad[:len(pad)-2], name)
	line := func(format string, args ...any) {
		if rapid.IntRange(0, 2).Draw(t, "line") > 0 {
			fmt.Fprintf(b, pad+format+"\n", args...)
		}
	}
	fmt.Fprintf(b, "%srole: %s\n", pad, drawOne(t, "role", "database", "helper", "batch"))
	line("match: [{user: %s, except: [{exe: psql}]}, {cmdline: '%s'}, {unit: %s}]",
		drawOne(t, "user", "mysql", "'1001'", "o'x"[:1]),
		drawOne(t, "pattern", "a b: {c}", "x # y", `ora_p[[:digit:]].{2}_B\\`, "it''s"),
		drawOne(t, "unit", "mariadb", "pg@15-main.service", "x.service"))
	line("owner: [{user: oracle, unix_group: dba, may: [%s], mode: '0664'}%s]",
		drawOne(t, "may", "run", "run, move", "move"), drawOne(t, "admin", "", ", {may: [set], directory: '0775'}"))
	line("cpu: {weight: %d, limit: %s, period: %s, burst: 1ms, cpus: '0-3,8'%s}",
		rapid.IntRange(1, 10000).Draw(t, "weight"), drawOne(t, "limit", "1.5", "250%", "0.123457", "max"),
		drawOne(t, "period", "100ms", "33333us", "10ms"), drawOne(t, "rt", "", ", rt: 10ms", ", numa: 0"))
	line("memory: {min: 1MiB, low: %s, high: %s, max: %s, swap: %s, swappiness: 10, oom: %s, numa: 0-1, huge: {2MiB: "+
		"1GiB, 1GiB: 0}}",
		drawOne(t, "low", "4%", "512MiB", "0"), drawOne(t, "high", "5000001B", "max"),
		drawOne(t, "max", "8GiB", "12.5%", "max"), drawOne(t, "swap", "0", "1GiB", "max"),
		drawOne(t, "oom", "kill", "kill-group", "pause"))
	line("tasks: %s", drawOne(t, "tasks", "4096", "max"))
	line("oom_score_adj: %d", rapid.IntRange(-1000, 1000).Draw(t, "score"))
	line("io: [{on: %s%s, read: {bandwidth: %s, iops: 5000}, write: {iops: max}%s}, {read: {bandwidth: "+
		"1MB/s}, weight: 7}]", drawOne(t, "on", "/dev/sda", "'8:16'", "'/srv/my data'", "asm:DATA", "vg:a"),
		drawOne(t, "io weight", "", ", weight: 50"), drawOne(t, "rate", "50MB/s", "1048577B/s", "20%"),
		drawOne(t, "split", "", ", split: even", ", layer: leaf"))
	line("network: [{on: eth0, egress: {min: 1Mbit/s, max: 2Mbit/s}, ports: [3306, 33060], replace: true}]")
	if depth == 1 && rapid.IntRange(0, 4).Draw(t, "slice") == 0 {
		fmt.Fprintf(b, "%sslice: %s.slice\n%sadopt: next-start\n%sfrom_unit: true\n", pad,
			strings.ReplaceAll(name, ".", "_"), pad, pad)
		return
	}
	if depth < 3 && rapid.Bool().Draw(t, "inside") {
		fmt.Fprintf(b, "%sgroups:\n", pad)
		drawGroup(t, b, "inner", depth+1)
		drawGroup(t, b, "other", depth+1)
	}
}

func drawOne(t *rapid.T, label string, all ...string) string {
	return rapid.SampledFrom(all).Draw(t, label)
}

// What neither format has anything like is said, and what names groups that are no more is left out, and said.
func TestWhatHasNoFormThere(t *testing.T) {
	sources, err := yamlform.Read("../policy/resolve/testdata/good/every-key.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := parse.Policy(sources)
	if err != nil {
		t.Fatal(err)
	}
	said := func(left []convert.Remark) map[string]string {
		all := map[string]string{}
		for _, r := range left {
			all[r.What] = r.Why
		}
		return all
	}
	config := libcgroup.Export(p, libcgroup.Options{})
	for _, x := range []*convert.Export{config, unitfile.Export(p)} {
		all := said(x.Left)
		for _, what := range []string{"host.tune", "guard", "slo", "group all: slo", "snapshots"} {
			if all[what] == "" {
				t.Errorf("nothing is said of %s: %v", what, all)
			}
		}
	}
	text := strings.NewReplacer("group rest", "group other").Replace(config.Files[0].Text)
	r, err := libcgroup.Import([]policy.Source{{Path: "cgconfig.conf", Text: text}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if all := said(r.Left); all["slo"] == "" || all["guard"] != "" || !strings.Contains(r.Policy, "\nguard: {") {
		t.Errorf("without one of the groups: %v\n%s", all, r.Policy)
	}
}
