// Package release says which database servers root tests run: those of the host, or with RELEASES=1 in the environment
// newer releases in their place, which are made when they are first asked for.
package release

import (
	"os"
	"testing"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/scenario"
)

// Wanted says whether releases stand in for the host's servers.
func Wanted() bool { return os.Getenv("RELEASES") != "" }

// Database is a throw-away one of "mariadb", "postgresql" or "redis", or of the release in its place, and the programs
// of its server.
func Database(t testing.TB, engine string) (scenario.Database, process.Programs) {
	t.Helper()
	d := scenario.Database{Name: engine, Engine: engine}
	for _, name := range scenario.Releases() {
		if r := d.OfEngine(name); r.Engine == engine && Wanted() {
			d = r
		}
	}
	found, err := database.Find(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	return d, found
}

// Programs are those of the release in place of an engine; nil is that the host's are to be used.
func Programs(t testing.TB, engine string) process.Programs {
	t.Helper()
	if !Wanted() {
		return nil
	}
	_, found := Database(t, engine)
	return found
}
