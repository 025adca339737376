package database

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/user"
	"path/filepath"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/bench/rootfs"
	"bulkhead/internal/scenario"
)

// Engines are the database engines by the name that scenarios give them.
var Engines = map[string]*Engine{"mariadb": MariaDB, "postgresql": postgresql, "redis": Redis,
	"mysql@9.7": mysql97, "postgresql@18": postgresql, "valkey@9": valkey}

// KindOf is how the servers of a database are made.
func KindOf(d scenario.Database) *Engine { return Engines[cmp.Or(d.Release, d.Engine)] }

// Required are the programs that the host must have for a database's server.
func Required(d scenario.Database) []process.Program {
	switch {
	case d.DSN != "":
		return nil
	case d.Release != "":
		return rootfs.Maker(d.Release)
	}
	return KindOf(d).Programs
}

// Find finds the programs of a database's server, or makes the root directory that holds them.
func Find(ctx context.Context, d scenario.Database) (process.Programs, error) {
	if d.Release != "" {
		return rootfs.Programs(ctx, d.Release)
	}
	return process.Find(KindOf(d).Programs)
}

// NewInstance makes a database ready to start; dir is the run's work directory, and p holds the programs of its server
// and of its helpers.
func NewInstance(d scenario.Database, dir string, buffer int, p process.Programs, n *process.Supervisor) (*Instance,
	error) {
	in := &Instance{Database: d, Kind: KindOf(d), buffer: buffer, paths: p, Supervisor: n,
		Prepared: map[string]bool{}}
	if d.DSN != "" {
		return in, in.ReadDSN()
	}
	var err error
	in.user = in.Kind.user
	if _, err := user.Lookup(in.user); err != nil && d.Release != "" {
		in.user = "nobody" // the host has not the package that brings the user
	}
	if in.owner, err = credentialOf(in.user); err != nil {
		return nil, err
	}
	if in.Port, err = FreePort(); err != nil {
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
