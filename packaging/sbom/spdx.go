package main

import (
	"strings"
	"time"
)

// document is an SPDX 2.3 document, with what it must have and no more.
type document struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []spdxPackage  `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	ID        string      `json:"SPDXID"`
	Name      string      `json:"name"`
	Version   string      `json:"versionInfo"`
	Download  string      `json:"downloadLocation"`
	Analyzed  bool        `json:"filesAnalyzed"`
	Concluded string      `json:"licenseConcluded"`
	Declared  string      `json:"licenseDeclared"`
	Copyright string      `json:"copyrightText"`
	External  []reference `json:"externalRefs,omitempty"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

// bill is the bill of materials of the program.
func bill(parts []component, version, arch string, at time.Time) document {
	const program, unknown = "SPDXRef-bulkhead", "NOASSERTION"
	name := "bulkhead-" + version + "-" + arch
	d := document{Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name,
		Namespace: "https://spdx.org/spdxdocs/" + name,
		Creation:  creation{at.UTC().Format(time.RFC3339), []string{"Tool: bulkhead-packaging-sbom"}},
		Packages: []spdxPackage{{ID: program, Name: "bulkhead", Version: version, Download: unknown,
			Concluded: "Apache-2.0", Declared: "Apache-2.0", Copyright: "Copyright the bulkhead authors"}},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", program}},
	}
	for _, c := range parts {
		id := "SPDXRef-" + strings.Map(func(r rune) rune {
			if r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r == '.' {
				return r
			}
			return '-'
		}, c.path)
		from := "golang"
		if c.npm {
			from = "npm"
		}
		d.Packages = append(d.Packages, spdxPackage{ID: id, Name: c.path, Version: c.version, Download: unknown,
			Concluded: c.licence, Declared: c.licence, Copyright: unknown,
			External: []reference{{"PACKAGE-MANAGER", "purl", "pkg:" + from + "/" + c.path + "@" + c.version}}})
		d.Relationships = append(d.Relationships, relationship{program, "STATIC_LINK", id})
	}
	return d
}
