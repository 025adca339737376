package packaging

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

// everyKey are the policies that the lab applies under bulkhead.service, in this order.
var everyKey = []string{"first", "second", "third", "unified"}

// notApplied are keys, and beginnings of keys, that none of these policies has, with the reason.
var notApplied = map[string]string{
	"class.":           "a class is merged into its groups when the file is read, and has no keys that they have not",
	"schedules.set.*.": "what a window sets is what a group asks for while it is open",
	"except.":          "an exception is compared as its entry is",
}

// schema is as much of JSON Schema as a policy's has.
type schema struct {
	Ref        string             `json:"$ref"`
	Properties map[string]*schema `json:"properties"`
	More       any                `json:"additionalProperties"`
	Items      *schema            `json:"items"`
	Any        []*schema          `json:"anyOf"`
	One        []*schema          `json:"oneOf"`
	Defs       map[string]*schema `json:"$defs"`
}

// keys adds what a schema names to all, by the path of the key: "group.cpu.limit".
func (s *schema) keys(defs map[string]*schema, at string, all map[string]bool) {
	if name, is := strings.CutPrefix(s.Ref, "#/$defs/"); is {
		if at = name; all[name] {
			return
		}
		all[name] = true
		s = defs[name]
	}
	for name, key := range s.Properties {
		to := strings.TrimPrefix(at+"."+name, ".")
		all[to] = true
		key.keys(defs, to, all)
	}
	if more := s.more(); more != nil {
		more.keys(defs, at+".*", all)
	}
	for _, one := range s.either() {
		one.keys(defs, at, all)
	}
	if s.Items != nil {
		s.Items.keys(defs, at, all)
	}
}

func (s *schema) either() []*schema { return slices.Concat(s.Any, s.One) }

// more is the schema of what has any name.
func (s *schema) more() *schema {
	if _, is := s.More.(map[string]any); !is {
		return nil
	}
	text, _ := json.Marshal(s.More)
	var more schema
	_ = json.Unmarshal(text, &more)
	return &more
}

// has takes the keys that a value has out of all.
func (s *schema) has(defs map[string]*schema, at string, value any, all map[string]bool) {
	if name, is := strings.CutPrefix(s.Ref, "#/$defs/"); is {
		at, s = name, defs[name]
		delete(all, name)
	}
	for _, one := range s.either() {
		one.has(defs, at, value, all)
	}
	switch v := value.(type) {
	case map[string]any:
		for name, inside := range v {
			if key := s.Properties[name]; key != nil {
				to := strings.TrimPrefix(at+"."+name, ".")
				delete(all, to)
				key.has(defs, to, inside, all)
			} else if more := s.more(); more != nil {
				more.has(defs, at+".*", inside, all)
			}
		}
	case []any:
		for _, inside := range v {
			if s.Items != nil {
				s.Items.has(defs, at, inside, all)
			}
		}
	}
}

// Each key that the schema knows is in one of the policies that the lab applies, or it is said why not.
func TestEveryKeyIsApplied(t *testing.T) {
	text, err := os.ReadFile(top + "/docs/policy.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	s.keys(s.Defs, "", all)
	if len(all) < 100 {
		t.Fatalf("the schema has only %d keys", len(all))
	}
	files, err := filepath.Glob("testdata/everykey/more/*.yaml")
	for _, name := range everyKey {
		files = append(files, "testdata/everykey/"+name+".yaml")
	}
	if err != nil || len(files) == len(everyKey) {
		t.Fatal("nothing is included")
	}
	for _, file := range files {
		var value any
		text, err := os.ReadFile(file)
		if err == nil {
			err = yaml.Unmarshal(text, &value)
		}
		if err != nil {
			t.Fatal(err)
		}
		s.has(s.Defs, "", value, all)
	}
	used := map[string]bool{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		covered := false
		for begin := range notApplied {
			if key == begin || strings.HasPrefix(key, begin) {
				covered, used[begin] = true, true
			}
		}
		if !covered {
			t.Errorf("no policy of testdata/everykey has the key %s: add it there, or to notApplied with the reason",
				key)
		}
	}
	for begin := range notApplied {
		if !used[begin] {
			t.Errorf("notApplied has %s, which the policies have or the schema does not", begin)
		}
	}
}
