package backuplock

import (
	"cmp"
	"context"
	"fmt"
	"strings"
)

// showReplicas is the statement that shows what the server replicates.
func (m *mysqlServer) showReplicas() string {
	switch {
	case m.mariadb:
		return "SHOW ALL SLAVES STATUS"
	case m.since("8.0.22"):
		return "SHOW REPLICA STATUS"
	}
	return "SHOW SLAVE STATUS"
}

// Replicating says what speaks against stopping the server as a replica: replication that runs, or temporary tables of
// replication, which a stop loses. "" is nothing.
func (s *Session) Replicating(ctx context.Context) (string, error) {
	m, is := s.server.(*mysqlServer)
	if !is {
		return "", nil
	}
	query := m.showReplicas()
	rows, err := m.rows(ctx, query)
	if err != nil {
		return "", s.plain(err)
	}
	for _, r := range rows {
		for _, thread := range []string{"IO", "SQL"} {
			state := cmp.Or(r["Replica_"+thread+"_Running"], r["Slave_"+thread+"_Running"])
			if !strings.EqualFold(state, "No") {
				return fmt.Sprintf("its thread %s says %s in %s", thread, cmp.Or(state, "nothing"), query), nil
			}
		}
	}
	name := "Slave_open_temp_tables"
	if !m.mariadb && m.since("8.0.26") {
		name = "Replica_open_temp_tables"
	}
	open, err := m.rows(ctx, "SHOW GLOBAL STATUS LIKE '"+name+"'")
	if err != nil {
		return "", s.plain(err)
	}
	for _, r := range open {
		if len(rows) > 0 && r["Value"] != "0" {
			return name + " is " + r["Value"] + ": these temporary tables would be lost", nil
		}
	}
	return "", nil
}
