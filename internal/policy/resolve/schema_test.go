package resolve

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

const (
	schemaFile    = "../../../docs/policy.schema.json"
	referenceFile = "../../../docs/policy.md"
)

// The committed schema is the one that the tables make.
func TestSchemaIsCurrent(t *testing.T) {
	text, err := parse.Schema()
	if err != nil {
		t.Fatal(err)
	}
	checkGolden(t, schemaFile, string(text))
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text, err := parse.Schema()
	if err != nil {
		t.Fatal(err)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("policy.schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("policy.schema.json") // checks it against the draft's own schema
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// validate holds a YAML text against the schema.
func validate(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	var doc any
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	return s.Validate(doc)
}

// What Parse takes, the schema takes.
func TestSchemaTakesGood(t *testing.T) {
	s := compileSchema(t)
	files, err := filepath.Glob("testdata/good/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no policies", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(t, s, string(text)); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// What is wrong in form, both refuse; the place in the schema's error shows that it is for the reason meant.
func TestSchemaRefusesBad(t *testing.T) {
	s := compileSchema(t)
	tests := []struct{ text, place string }{
		{"{}", "version"},
		{"version: 2", "/version"},
		{"{version: 1, gruops: {}}", "gruops"},
		{"{version: 1, schedules: {}}", "/schedules"},
		{"{version: 1, schedules: [{name: a, when: '0 1 * * *', for: 1h}]}", "'set'"},
		{"{version: 1, groups: {a: {}}, schedules: [{name: a, when: '0 1 * * *', for: 1h, set: {a: {role: batch}}}]}",
			"role"},
		{"{version: 1, host: {root: a/b}}", "/host/root"},
		{"{version: 1, host: {root: tasks}}", "/host/root"},
		{"{version: 1, host: {root: my.slice}}", "/host/root"},
		{"{version: 1, groups: {db: {}}}", "'db'"},
		{"{version: 1, groups: {a: {groups: {memory.x: {}}}}}", "'memory.x'"},
		{"{version: 1, host: {weight: 0}}", "/host/weight"},
		{"{version: 1, host: {reserve: {memory: 1}}}", "/host/reserve/memory"},
		{"{version: 1, agent: {fast_moves: 'yes'}}", "/agent/fast_moves"},
		{"{version: 1, agent: {on_conflict: report}}", "/agent/on_conflict"},
		{"{version: 1, classes: {c: {match: []}}}", "match"},
		{"{version: 1, groups: {'a b': {}}}", "a b"},
		{"{version: 1, groups: {a: {cpu: {limt: 1}}}}", "limt"},
		{"{version: 1, groups: {a: {cpu: {limit: 0}}}}", "/groups/a/cpu/limit"},
		{"{version: 1, groups: {a: {cpu: {limit: 1 core}}}}", "/groups/a/cpu/limit"},
		{"{version: 1, groups: {a: {cpu: {weight: 10001}}}}", "/groups/a/cpu/weight"},
		{"{version: 1, groups: {a: {cpu: {weight: max}}}}", "/groups/a/cpu/weight"},
		{"{version: 1, groups: {a: {cpu: {period: 100}}}}", "/groups/a/cpu/period"},
		{"{version: 1, groups: {a: {memory: {max: 48G}}}}", "/groups/a/memory/max"},
		{"{version: 1, groups: {a: {memory: {max: 48}}}}", "/groups/a/memory/max"},
		{"{version: 1, groups: {a: {memory: {max: 0}}}}", "/groups/a/memory/max"},
		{"{version: 1, groups: {a: {memory: {huge: {big: 1GiB}}}}}", "'big'"},
		{"{version: 1, groups: {a: {memory: {oom: never}}}}", "/groups/a/memory/oom"},
		{"{version: 1, groups: {a: {tasks: many}}}", "/groups/a/tasks"},
		{"{version: 1, groups: {a: {network: [{on: eth0}]}}}", "/groups/a/network/0"},
		{"{version: 1, groups: {a: {network: [{egress: 1Mbit/s}]}}}", "/groups/a/network/0"},
		{"{version: 1, groups: {a: {network: [{on: eth0, egress: 1MB/s}]}}}", "/groups/a/network/0/egress"},
		{"{version: 1, groups: {a: {network: [{on: eth0, egress: {}, ports: [0]}]}}}", "/groups/a/network/0"},
		{"{version: 1, groups: {a: {io: [{on: sdb, read: {iops: 1}}]}}}", "/groups/a/io/0/on"},
		{"{version: 1, groups: {a: {io: [{on: /data}]}}}", "/groups/a/io/0"},
		{"{version: 1, groups: {a: {io: [{read: {bandwidth: 10MB}}]}}}", "/groups/a/io/0/read/bandwidth"},
		{"{version: 1, groups: {a: {match: [{}]}}}", "/groups/a/match/0"},
		{"{version: 1, groups: {a: {match: [{helper: backups}]}}}", "/groups/a/match/0/helper"},
		{"{version: 1, groups: {a: {match: [{engine: orcle}]}}}", "/groups/a/match/0/engine"},
		{"{version: 1, groups: {a: {match: [{cmdline: '('}]}}}", "/groups/a/match/0/cmdline"},
		{"{version: 1, groups: {a: {match: [{user: x, except: [{except: []}]}]}}}", "/groups/a/match/0/except/0"},
		{"{version: 1, groups: {a: {groups: {b: {groups: {c: {rle: x}}}}}}}", "/groups/a/groups/b/groups/c"},
		{"{version: 1, groups: {'a{port}': {each: {port: 1}}}}", "/groups/a{port}/each"},
		{"{version: 1, groups: {'a{prot}': {each: {engine: mysql}}}}", "a{prot}"},
	}
	for _, test := range tests {
		err := validate(t, s, test.text)
		if err == nil || !strings.Contains(err.Error(), test.place) {
			t.Errorf("%s: %v does not name %s", test.text, err, test.place)
		}
		if _, err := parse.Policy([]policy.Source{{Path: "main", Text: test.text + "\n"}}); err == nil {
			t.Errorf("%s: Parse takes it", test.text)
		}
	}
}

// The reference names every limit, and its examples are policies.
func TestReference(t *testing.T) {
	text, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range policy.Keys() {
		if !strings.Contains(string(text), "`"+string(key)+"`") {
			t.Errorf("%s does not describe %s", referenceFile, key)
		}
	}
	examples := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(text), -1)
	if len(examples) < 3 {
		t.Fatalf("%d examples", len(examples))
	}
	s := compileSchema(t)
	for _, e := range examples {
		p, err := parse.Policy([]policy.Source{{Path: "example", Text: e[1]}})
		if err != nil {
			t.Errorf("an example is wrong:\n%s\n%v", e[1], err)
			continue
		}
		if _, problems := Policy(p, testHost(), testResolver()); len(problems) > 0 {
			t.Errorf("an example is wrong on the test host:\n%v", problems)
		}
		if err := validate(t, s, e[1]); err != nil {
			t.Errorf("the schema refuses an example:\n%s\n%v", e[1], err)
		}
	}
}
