//go:build root

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"testing"
	"time"

	"bulkhead/internal/testhost"
	"bulkhead/internal/testhost/release"
)

// The histogram has the calls that were made, and one that took long as a long one: in MariaDB by its plugin, in MySQL
// (RELEASES=1) by its performance_schema, and in Redis.
func TestHistogramOfServersRoot(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("only with LONG=1: it takes two readings, 10 s apart")
	}
	for _, c := range []struct {
		engine, url string
		start       func(t *testing.T) *database
		slow        func(d *database) // takes 2 s
	}{
		{"mysql", "mysql://root@127.0.0.1:%d/", func(t *testing.T) *database {
			db := mariadb(t)
			if release.Programs(t, "mariadb") == nil {
				db.args = append(db.args, "--plugin-load-add=query_response_time", "--query-response-time-stats=ON")
			}
			db.start()
			db.fill(1000)
			db.reads(1000)
			return db
		}, func(d *database) { d.query("SELECT SLEEP(2)") }},
		{"redis", "redis://127.0.0.1:%d", func(t *testing.T) *database {
			db := redis(t)
			db.start()
			db.load(2)
			return db
		}, nil},
	} {
		t.Run(c.engine, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			db := c.start(t)
			s.write(fmt.Sprintf("groups:\n  app: {role: database, match: [{engine: %s, port: %d}], memory: {max: "+
				"1GiB}}\nguard: {for: 6s, window: 1s, before: 20s, groups: {app: {throughput_falls: 85%%, dsn: \""+
				c.url+"\"}}}\n", c.engine, db.port, db.port))
			s.must("apply")
			s.agent()
			time.Sleep(12 * time.Second)
			if c.slow != nil {
				c.slow(db)
			}
			var h struct {
				Total struct{ Calls, Seconds float64 }
				Rows  []struct {
					Over  float64 `json:"over_seconds"`
					Calls float64
				}
			}
			var said result
			testhost.WaitLong(t, 60*time.Second, "the calls to be in the histogram", func() bool {
				said = s.run("histogram", "app", "--for", "20s", "--json")
				if said.code != 0 || json.Unmarshal([]byte(said.out), &h) != nil || len(h.Rows) == 0 {
					return false
				}
				last := h.Rows[len(h.Rows)-1]
				return c.slow == nil || last.Over >= 0.9 && last.Calls >= 1
			})
			if h.Total.Calls < 100 || h.Total.Seconds <= 0 {
				t.Errorf("the load is not in it: %+v", h)
			}
			t.Log(s.must("histogram", "app", "--for", "20s"))
		})
	}
}
