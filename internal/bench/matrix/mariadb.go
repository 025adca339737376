package matrix

import (
	"context"
	"fmt"
	"strings"

	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/pagesize"
	"bulkhead/internal/scenario"
)

// mariadb has a database of each size, and its buffer pool in the pages (large_pages). MySQL has the same words.
type mariadb struct{}

func (mariadb) fill(ctx context.Context, s *subject, size scenario.Point, of load.Driver) (*load.Driver, error) {
	const rows = 4000 // of sysbench in a MiB, with their two indexes
	in := *of.Database
	in.Account.Database, of.Database = databaseOf(size), &in
	of.Tables = max(of.Tables, 1)
	of.Rows = s.mib(size) * rows / of.Tables
	if err := in.Execute(ctx, "CREATE DATABASE "+databaseOf(size)); err != nil {
		return nil, err
	}
	return &of, of.Prepare(ctx)
}

// need is what `bulkhead memory` says of the server that runs.
func (mariadb) need(ctx context.Context, s *subject, _ int64) (int64, error) {
	return pagesize.Need(ctx, s.Host, s.database.PID())
}

func (mariadb) options(page int64) []string {
	if page == pagesize.Usual {
		return []string{"--large-pages=OFF"}
	}
	return []string{"--large-pages=ON"}
}

func (mariadb) warm(ctx context.Context, s *subject, cell *scenario.Cell) (said string, least int64, err error) {
	for table := 1; table <= s.drivers[cell.Size.Name].Tables; table++ {
		for _, index := range []string{"PRIMARY", fmt.Sprintf("k_%d", table)} {
			if _, err = s.database.Value(ctx, databaseOf(cell.Size), fmt.Sprintf(
				"SELECT COUNT(*) FROM sbtest%d FORCE INDEX (%s) WHERE k >= 0", table, index)); err != nil {
				return "", 0, err
			}
		}
	}
	said, err = s.database.Value(ctx, "", "SELECT IF(@@large_pages, 'large_pages=on', 'large_pages=off')")
	if off := strings.HasSuffix(said, "=off"); err == nil && off != (cell.Page.Bytes == pagesize.Usual) {
		err = fmt.Errorf("with pages of %s the server says %s", cell.Page.Name, said)
	}
	return said, s.buffer(), err
}
