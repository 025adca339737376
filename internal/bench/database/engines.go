package database

import (
	"fmt"
	"os"
	"path/filepath"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/scenario"
)

// Engines are the database engines by the name that scenarios give them.
var Engines = map[string]*Engine{"mariadb": MariaDB, "postgresql": postgresql, "redis": Redis}

// NewInstance makes a database ready to start; dir is the run's work directory.
func NewInstance(d scenario.Database, dir string, buffer int, p process.Programs, n *process.Supervisor) (*Instance,
	error) {
	in := &Instance{Database: d, Kind: Engines[d.Engine], buffer: buffer, paths: p, Supervisor: n,
		Prepared: map[string]bool{}}
	if d.DSN != "" {
		return in, in.ReadDSN()
	}
	var err error
	if in.owner, err = credentialOf(in.Kind.user); err != nil {
		return nil, err
	}
	if in.Port, err = freePort(); err != nil {
		return nil, err
	}
	base := filepath.Join(dir, d.Name)
	if err := os.Mkdir(base, 0o711); err != nil {
		return nil, fmt.Errorf("make directory: %w", err)
	}
	in.DataDir, in.RunDir = filepath.Join(base, "data"), filepath.Join(base, "run")
	in.log = filepath.Join(in.RunDir, "error.log")
	for _, d := range []string{in.DataDir, in.RunDir} {
		if err := makeOwned(d, in.owner); err != nil {
			return nil, err
		}
	}
	in.Account = Account{User: "root", Database: "sbtest"}
	return in, nil
}
