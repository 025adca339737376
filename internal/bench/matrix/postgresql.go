package matrix

import (
	"context"
	"fmt"
	"strings"

	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/pagesize"
	"bulkhead/internal/scenario"
)

// postgresql has a database of each size, and its shared memory in the pages (huge_pages, PostgreSQL 15).
type postgresql struct{}

func (postgresql) fill(ctx context.Context, s *subject, size scenario.Point, of load.Driver) (*load.Driver, error) {
	const scale, rows = 16, 100_000 // a unit of pgbench's scale is about 16 MiB, and so many rows
	in := *of.Database
	in.Account.Database, of.Database = databaseOf(size), &in
	of.Rows = max(s.mib(size)/scale, 1) * rows
	if _, err := in.Query(ctx, "postgres", "CREATE DATABASE "+databaseOf(size)); err != nil {
		return nil, err
	}
	if err := of.Prepare(ctx); err != nil {
		return nil, err
	}
	if _, err := in.Query(ctx, databaseOf(size), "CREATE EXTENSION pg_prewarm"); err != nil {
		return nil, err
	}
	_, err := in.Query(ctx, "postgres", "CHECKPOINT")
	return &of, err
}

// need is what a server says that does not run.
func (postgresql) need(ctx context.Context, s *subject, page int64) (int64, error) {
	if err := s.database.Stop(); err != nil {
		return 0, err
	}
	return s.database.HugePages(ctx, page)
}

func (postgresql) options(page int64) []string {
	if page == pagesize.Usual {
		return []string{"-c", "huge_pages=off"}
	}
	return []string{"-c", "huge_pages=on", "-c", fmt.Sprintf("huge_page_size=%dkB", page>>10)}
}

func (postgresql) warm(ctx context.Context, s *subject, cell *scenario.Cell) (said string, least int64, err error) {
	if _, err = s.database.Query(ctx, databaseOf(cell.Size), "SELECT pg_prewarm(oid) FROM pg_class "+
		"WHERE relname LIKE 'pgbench%' AND relkind IN ('r', 'i')"); err != nil {
		return "", 0, err
	}
	said, err = s.database.Query(ctx, "postgres", "SELECT string_agg(name||'='||setting, ', ' ORDER BY name) "+
		"FROM pg_settings WHERE name IN ('huge_pages', 'huge_pages_status')")
	if err != nil {
		return "", 0, err
	}
	word := map[bool]string{true: "off", false: "on"}[cell.Page.Bytes == pagesize.Usual]
	for setting := range strings.SplitSeq(said, ", ") {
		if !strings.HasSuffix(setting, "="+word) {
			return "", 0, fmt.Errorf("with pages of %s the server says %s", cell.Page.Name, said)
		}
	}
	return said, s.buffer(), nil
}
