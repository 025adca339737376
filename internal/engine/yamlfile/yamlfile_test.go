package yamlfile_test

import (
	"errors"
	"strings"
	"testing"

	"bulkhead/internal/engine/yamlfile"
)

// A setting has its line; what is not understood is an error, and no setting that is not there.
func TestGet(t *testing.T) {
	f := yamlfile.Read("/etc/x.yaml", []byte("# x\na: 1\nb:\n  c: 'two' # of three\n  d: {e: 3.5, f: [1, 2]}\n"+
		"g: &g {h: 4}\ni: *g\nj:\nk.l: 5\n"))
	for name, want := range map[string]string{"a": "1 /etc/x.yaml:2", "b.c": "two /etc/x.yaml:4",
		"b.d.e": "3.5 /etc/x.yaml:5", "g.h": "4 /etc/x.yaml:6", "k.l": "5 /etc/x.yaml:9"} {
		if s, set, err := f.Get(name); err != nil || !set || s.Value+" "+s.From != want {
			t.Errorf("%s: %+v, %t, %v", name, s, set, err)
		}
	}
	for name, want := range map[string]string{"b": "form", "b.d.f": "form", "i": "form", "i.h": "i in a form", "j": "",
		"z": "", "a.b": ""} {
		if s, set, err := f.Get(name); set || (err == nil) != (want == "") ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %t, %v", name, s, set, err)
		}
	}
	if _, set, err := new(yamlfile.File).Get("a"); set || err != nil {
		t.Errorf("of no file: %t, %v", set, err)
	}
	for text, want := range map[string]error{"a = 1\n": yamlfile.ErrNoMapping, "- a\n": yamlfile.ErrNoMapping, "": nil,
		"a = 1\n# now b\n\nb=x:y\n": yamlfile.ErrNoMapping,
		"# nothing\n":               nil, "---\n": nil} {
		if f := yamlfile.Read("x", []byte(text)); !errors.Is(f.Err, want) {
			t.Errorf("%q: %v", text, f.Err)
		}
	}
	if f := yamlfile.Read("x", []byte("a: [")); f.Err == nil {
		t.Error("a list without an end is read")
	}
}

// What a file may set in a form that is not read, or sets twice, is not known; the rest is.
func TestNotRead(t *testing.T) {
	for _, c := range []struct{ text, unknown, known string }{
		{"a: &a {c: 1}\nb:\n  <<: *a\n  d: 2\n", "b.c", "b.d"},
		{"b: {<<: {c: 1}, d: 2}\n", "b.c", "b.d"},
		{"b:\n  <<: {c: 1}\n", "b.c.e", "a"},
		{"__exec: /bin/ask\ntype: yaml\n", "b.c", "type"},
		{"b:\n  __rest: http://x\nd: 1\n", "b.c", "d"},
		{"b: 1\nb: 2\nc: 3\n", "b", "c"},
		{"b: {c: 1}\nb: {d: 2}\n", "b.c", "a"},
		{"b: {c: 1}\nb.c: 2\n", "b.c", "b.d"},
		{"x: &x c\nb:\n  *x : 1\n", "b.c", "x"},
	} {
		f := yamlfile.Read("/etc/x.yaml", []byte(c.text))
		if s, set, err := f.Get(c.unknown); err == nil || set || s.Value != "" {
			t.Errorf("%q: %s is %+v, %t", c.text, c.unknown, s, set)
		}
		if _, _, err := f.Get(c.known); err != nil {
			t.Errorf("%q: %s: %v", c.text, c.known, err)
		}
	}
}

// No text has it panic, or take long.
func FuzzRead(f *testing.F) {
	for _, text := range []string{"a: 1\n", "a: &a [*a]\n", "a: {b: {c: 1}}\n", strings.Repeat("{a: ", 40), "\x00",
		"? a\n: b\n", "<<: {a: 1}\n"} {
		f.Add(text, "a")
	}
	f.Fuzz(func(t *testing.T, text, name string) {
		if _, set, err := yamlfile.Read("x", []byte(text)).Get(name); set && err != nil {
			t.Errorf("%q is set, and %v", name, err)
		}
	})
}
