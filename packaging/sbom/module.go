package main

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
)

// component is a module that the program is linked with, or a package of npm that it has in it.
type component struct {
	path, version string
	licence       string   // by its SPDX identifier
	texts         []string // of its licences and notices
	npm           bool
}

// linked reads the modules of a program, the standard library first, and what it was built for.
func linked(program string) (parts []component, arch string, err error) {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return nil, "", err
	}
	for _, s := range info.Settings {
		if s.Key == "GOARCH" {
			arch = s.Value
		}
	}
	goroot := component{path: "std", version: strings.TrimPrefix(info.GoVersion, "go")}
	if err := goroot.read(os.Getenv("GOROOT")); err != nil {
		return nil, "", err
	}
	parts = []component{goroot}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := component{path: m.Path, version: m.Version}
		if err := c.read(filepath.Join(os.Getenv("MODCACHE"), escaped(m.Path)+"@"+escaped(m.Version))); err != nil {
			return nil, "", err
		}
		parts = append(parts, c)
	}
	plot, err := vendored("internal/page/assets/uplot")
	return append(parts, plot), arch, err
}

// vendored is a package of npm in a directory of this repository, whose README.md begins with its name and version.
func vendored(dir string) (component, error) {
	text, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		return component{}, err
	}
	words := strings.Fields(string(text))
	if len(words) < 3 || words[0] != "#" {
		return component{}, fmt.Errorf("%s/README.md does not begin with a name and a version", dir)
	}
	c := component{path: strings.ToLower(words[1]), version: words[2], npm: true}
	return c, c.read(dir)
}

// escaped is a path as the module cache has it: an exclamation mark before each capital letter, which becomes small.
func escaped(path string) string {
	var b strings.Builder
	for _, r := range path {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

// read takes licences and notices from the directory of the module.
func (c *component) read(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("licence of %s: %w", c.path, err)
	}
	for _, e := range entries {
		name := strings.ToUpper(strings.TrimSuffix(strings.TrimSuffix(e.Name(), ".md"), ".txt"))
		if e.IsDir() || !slices.Contains([]string{"LICENSE", "LICENCE", "COPYING", "NOTICE", "PATENTS"}, name) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		c.texts = append(c.texts, strings.TrimSpace(string(text)))
		if id := identify(string(text)); c.licence == "" {
			c.licence = id
		}
	}
	if c.licence == "" {
		return fmt.Errorf("no licence that is known was found in %s: if it may be linked, add it to packaging/sbom",
			dir)
	}
	return nil
}

// identify gives the SPDX identifier of a licence by its words, "" for another text.
func identify(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	for _, l := range []struct {
		id    string
		words []string
	}{
		{"Apache-2.0", []string{"Apache License", "Version 2.0"}},
		{"MPL-2.0", []string{"Mozilla Public License", "2.0"}},
		{"MIT", []string{"Permission is hereby granted, free of charge"}},
		{"ISC", []string{"Permission to use, copy, modify, and"}},
		{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "Neither the name"}},
		{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms"}},
	} {
		if !slices.ContainsFunc(l.words, func(w string) bool { return !strings.Contains(text, w) }) {
			return l.id
		}
	}
	return ""
}

// licences writes each text once, below the modules that have it.
func licences(parts []component) string {
	var b strings.Builder
	b.WriteString("bulkhead has these Go modules and packages of npm in it.\n")
	of, order := map[string][]string{}, []string(nil)
	for _, c := range parts {
		fmt.Fprintf(&b, "\n  %s %s (%s)", c.path, c.version, c.licence)
		for _, text := range c.texts {
			if of[text] == nil {
				order = append(order, text)
			}
			of[text] = append(of[text], c.path)
		}
	}
	b.WriteByte('\n')
	for _, text := range order {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("-", 72), strings.Join(of[text], "\n"), text)
	}
	return b.String()
}
