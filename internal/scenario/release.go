package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// engines are those of the host's own packages.
var engines = []string{"mariadb", "postgresql", "redis"}

// releases are newer releases that a run makes, with the engine whose clients they serve.
var releases = map[string]string{"mysql@9.7": "mariadb", "postgresql@18": "postgresql", "valkey@9": "redis"}

// Releases names the releases that may stand for an engine: "mysql@9.7".
func Releases() []string { return slices.Sorted(maps.Keys(releases)) }

// OfEngine is the database with an engine of the host, or with a release in its place.
func (d Database) OfEngine(name string) Database {
	d.Engine, d.Release = name, ""
	if engine, is := releases[name]; is {
		d.Engine, d.Release = engine, name
	}
	return d
}

// WithRelease is the scenario with a release in place of the host's servers of its engine. Databases that exist stay.
func (s *Scenario) WithRelease(name string) (*Scenario, error) {
	engine, is := releases[name]
	if !is {
		return nil, fmt.Errorf("there is no release %q, only %s", name, strings.Join(Releases(), ", "))
	}
	other := *s
	other.Databases = slices.Clone(s.Databases)
	found := false
	for i, d := range other.Databases {
		if d.Engine == engine && d.DSN == "" {
			other.Databases[i], found = d.OfEngine(name), true
		}
	}
	if !found {
		return nil, fmt.Errorf("scenario %q starts no %s that %s could stand for", s.Name, engine, name)
	}
	other.Title += ", on " + name
	other.Digest += "@" + name // its result is none of the scenario's own
	return &other, nil
}
