package scenario

import (
	"strings"
	"testing"

	"bulkhead/internal/policy"
)

// A release stands for the host's servers of its engine, in the file or by a word beside it; databases that exist stay.
func TestReleases(t *testing.T) {
	s, err := Parse(policy.Source{Path: "small.yaml", Text: strings.Replace(small, "mariadb", "mysql@9.7", 1)})
	if err != nil {
		t.Fatal(err)
	}
	if d := s.Databases[0]; d.Engine != "mariadb" || d.Release != "mysql@9.7" {
		t.Errorf("the file's: %+v", d)
	}
	if s, err = Parse(policy.Source{Path: "small.yaml", Text: small}); err != nil {
		t.Fatal(err)
	}
	other, err := s.WithRelease("mysql@9.7")
	if err != nil || other.Databases[0].Release != "mysql@9.7" || s.Databases[0].Release != "" {
		t.Errorf("%v: %+v of %+v", err, other, s.Databases)
	}
	if d := other.Databases[0].OfEngine("mariadb"); d.Release != "" || d.Engine != "mariadb" {
		t.Errorf("the host's again: %+v", d)
	}
	for name, want := range map[string]string{
		"mysql@8":  "only mysql@9.7, postgresql@18, valkey@9",
		"valkey@9": "starts no redis that valkey@9 could stand for",
	} {
		if _, err := s.WithRelease(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	s.Databases[0].DSN = "mysql://db.example/shop"
	if _, err := s.WithRelease("mysql@9.7"); err == nil {
		t.Error("a server that exists is replaced")
	}
}
