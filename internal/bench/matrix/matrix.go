// Package matrix carries out the cells of a scenario's matrix: [Open] makes the page sizes of the host those of a
// proof, Fill makes a database of each size, and around the load of a cell stand Begin and End. What differs between
// engines is a server. A [Matrix] is for one goroutine, but for Look, which is for the one that follows the load.
package matrix

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/pagesize"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/linux/family"
	"bulkhead/internal/scenario"
)

// Matrix measures the cells of a scenario's matrix. That of a scenario without one is nil, whose methods do nothing.
type Matrix struct {
	subject
	settings *pagesize.Settings
	server   server
	options  []string        // of the server in every cell
	pages    map[int64]int64 // of a pool that it takes, by page size
	faults   int64           // before the load of a cell
	tables   int64           // most bytes of page tables that were seen while it ran
	evidence string          // of its page size
}

// Open records the page sizes of the host in a directory and switches transparent huge pages off, beside a guard
// that takes it back should this process be killed.
func Open(ctx context.Context, f Fitted, n *process.Supervisor, guard process.Spec, dir string) (*Matrix,
	error) {
	for _, d := range f.Scenario.Databases {
		if d.DSN != "" {
			return nil, &process.RequirementError{Reason: "its database starts anew for each page size, and one that " +
				"exists is never stopped", Hint: "leave --dsn out", Reach: process.ThisScenario}
		}
	}
	said, ready := io.Pipe()
	guard.Stdout = ready
	child, err := n.Start(guard)
	if err != nil {
		return nil, err
	}
	go func() {
		<-child.Done
		_ = ready.CloseWithError(errors.New("the guard of page sizes ended")) // never fails
	}()
	if _, err := said.Read(make([]byte, len("ready\n"))); err != nil {
		return nil, fmt.Errorf("start what takes page sizes back: %w", err)
	}
	var sizes []int64
	for _, p := range f.Scenario.Matrix.Pages {
		if p.Bytes > pagesize.Usual {
			sizes = append(sizes, p.Bytes)
		}
	}
	s, err := pagesize.Open(ctx, f.Host, dir, sizes)
	if err != nil {
		return nil, err
	}
	return &Matrix{subject: subject{Fitted: f, drivers: map[string]*load.Driver{}}, settings: s,
		pages: map[int64]int64{}}, nil
}

// Fill makes a database of each size, and leaves out the page sizes that the kernel gives no pages of.
func (m *Matrix) Fill(ctx context.Context, d *load.Driver) error {
	if m == nil {
		return nil
	}
	m.database, m.options = d.Database, d.Database.Options
	m.server = map[string]server{"postgresql": postgresql{}, "mariadb": mariadb{}, "redis": &redis{}}[d.Database.Engine]
	for _, size := range m.Scenario.Matrix.Sizes {
		of, err := m.server.fill(ctx, &m.subject, size, *d)
		if err != nil {
			return err
		}
		m.drivers[size.Name] = of
	}
	for _, p := range m.Scenario.Matrix.Pages {
		if p.Bytes == pagesize.Usual {
			continue
		}
		var err error
		if m.pages[p.Bytes], err = m.server.need(ctx, &m.subject, p.Bytes); err != nil {
			return err
		}
		if err := m.settings.Reserve(ctx, p.Bytes, m.pages[p.Bytes]); err != nil {
			if ctx.Err() != nil {
				return err
			}
			m.leaveOut(p, err)
		}
	}
	return errors.Join(m.database.Stop(), m.settings.Reserve(ctx, pagesize.Usual, 0))
}

// leaveOut leaves out the cells of a page size.
func (m *Matrix) leaveOut(p scenario.PageSize, because error) {
	for _, arm := range m.Scenario.Arms {
		if arm.Cell.Page == p {
			m.Omitted[arm.Name] = because.Error()
		}
	}
}

// reaped is long enough for a server to have waited for backends that ended: their faults count from then on.
const reaped = time.Second / 5

// Begin starts the database for a cell, reads it into memory and proves its page size.
func (m *Matrix) Begin(ctx context.Context, arm scenario.Arm) error {
	if m == nil {
		return nil
	}
	page := arm.Cell.Page
	if err := m.settings.Reserve(ctx, page.Bytes, m.pages[page.Bytes]); err != nil {
		return err
	}
	m.database.Options = append(slices.Clip(m.options), m.server.options(page.Bytes)...)
	if err := m.database.Start(ctx, nil); err != nil {
		return err
	}
	said, least, err := m.server.warm(ctx, &m.subject, arm.Cell)
	if err != nil {
		return err
	}
	seen, err := pagesize.Prove(m.Host, m.database.PID(), page.Bytes, least)
	if err != nil {
		return fmt.Errorf("%w; the server says %s", err, said)
	}
	m.evidence, m.tables = seen+"; the server says "+said, 0
	process.Sleep(ctx, reaped)
	m.faults, _, err = family.Faults(m.Host.Proc, m.database.PID())
	return err
}

// Of is what loads the database in an arm.
func (m *Matrix) Of(d *load.Driver, arm scenario.Arm) *load.Driver {
	if m == nil {
		return d
	}
	of := *m.drivers[arm.Cell.Size.Name]
	of.Threads = max(m.Number(arm.Cell.Clients.Is, 1), 1)
	return &of
}

// Look notes the page tables while clients are there.
func (m *Matrix) Look(ctx context.Context) {
	if m == nil {
		return
	}
	if tables, err := pagesize.Tables(m.Host, m.database.PID()); err == nil { // without, the cell has no such figure
		m.tables = max(m.tables, tables)
	}
	if w, is := m.server.(watched); is {
		w.look(ctx)
	}
}

// End gives what was seen of a cell, as figures of its database, and what proved its page size.
func (m *Matrix) End(ctx context.Context, page scenario.PageSize, into map[string]float64) (evidence string,
	err error) {
	process.Sleep(ctx, reaped)
	faults, _, err := family.Faults(m.Host.Proc, m.database.PID())
	if err != nil {
		return "", err
	}
	figure := func(name string, is float64) { into[m.database.Name+"."+name] = is }
	if page.Bytes != pagesize.Transparent {
		figure("page_size", float64(page.Bytes))
	}
	figure("page_faults", float64(faults-m.faults))
	if m.tables > 0 {
		figure("page_tables", float64(m.tables))
	}
	if w, is := m.server.(watched); is {
		err = w.end(ctx, figure)
	}
	return m.evidence, err
}

// Settings are those of the server in every cell, as the report has them; "" without a matrix.
func (m *Matrix) Settings() string {
	if m == nil {
		return ""
	}
	settings := slices.DeleteFunc(slices.Clone(m.options), func(o string) bool { return o == "-c" })
	return strings.Join(settings, " ")
}

// Close puts page sizes back.
func (m *Matrix) Close(ctx context.Context) error { return m.settings.Close(ctx) }
