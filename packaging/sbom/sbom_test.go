package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A licence is known by its words, and one that nobody has looked at stops the build.
func TestModuleLicence(t *testing.T) {
	for text, want := range map[string]string{
		"Apache License\n  Version 2.0, January 2004":                                "Apache-2.0",
		"Permission is hereby granted, free of\ncharge, to any person":               "MIT",
		"Mozilla Public License Version 2.0":                                         "MPL-2.0",
		"Redistribution and use in source and binary forms":                          "BSD-2-Clause",
		"Redistribution and use in source and binary\nforms. Neither the name of us": "BSD-3-Clause",
		"GNU GENERAL PUBLIC LICENSE":                                                 "",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "LICENSE.md"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := component{path: "example.com/x"}
		err := c.read(dir)
		if c.licence != want || (err == nil) != (want != "") {
			t.Errorf("%q is %q, %v; want %q", text, c.licence, err, want)
		}
	}
	if err := new(component).read(t.TempDir()); err == nil {
		t.Error("a module without a licence passes")
	}
}

func TestEscaped(t *testing.T) {
	if got := escaped("github.com/BurntSushi/toml"); got != "github.com/!burnt!sushi/toml" {
		t.Error(got)
	}
}

// A text that several modules have is there once.
func TestLicences(t *testing.T) {
	text := licences([]component{{path: "a", version: "v1", licence: "MIT", texts: []string{"the text"}},
		{path: "b", version: "v2", licence: "MIT", texts: []string{"the text"}}})
	if strings.Count(text, "the text") != 1 || !strings.Contains(text, "  b v2 (MIT)\n") ||
		!strings.Contains(text, "\na\nb\n\nthe text\n") {
		t.Error(text)
	}
}

// The bill has what is embedded, too.
func TestVendored(t *testing.T) {
	c, err := vendored("../../internal/page/assets/uplot")
	if err != nil || c.path != "uplot" || c.version == "" || c.licence != "MIT" {
		t.Errorf("it is %+v, %v", c, err)
	}
	d := bill([]component{c}, "1", "amd64", time.Unix(0, 0))
	if got := d.Packages[1].External[0].Locator; got != "pkg:npm/uplot@"+c.version {
		t.Errorf("it is called %s", got)
	}
}
