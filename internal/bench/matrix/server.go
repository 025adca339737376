package matrix

import (
	"context"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/load"
	"bulkhead/internal/host"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
)

// Fitted is a scenario as it is fitted to the machine.
type Fitted struct {
	Scenario *scenario.Scenario
	Host     *host.Host
	Number   func(e scenario.Expression, otherwise int) int
	Omitted  map[string]string // why an arm is left out, by its name
}

// Cell is an arm's combination with its values; nil where it is of no matrix.
func (f Fitted) Cell(c *scenario.Cell) *proof.Cell {
	if c == nil {
		return nil
	}
	return &proof.Cell{Page: c.Page.Name, Size: c.Size.Name, SizeMiB: f.Number(c.Size.Is, 0),
		Clients: f.Number(c.Clients.Is, 0)}
}

// subject is the database of a matrix.
type subject struct {
	Fitted
	database *database.Instance
	drivers  map[string]*load.Driver // what loads it, by its size
}

// databaseOf is where the data of a size is.
func databaseOf(size scenario.Point) string { return "size_" + size.Name }

// mib is what a size of the scenario comes to.
func (s *subject) mib(size scenario.Point) int {
	const otherwise = 16
	return max(s.Number(size.Is, otherwise), 1)
}

// buffer is that of the server, in bytes.
func (s *subject) buffer() int64 { return int64(s.Number(s.database.Buffer, 0)) << 20 }

// server is what differs between the engines of a matrix.
type server interface {
	// fill makes the data of a size, which a start of the server does not take away, and gives what loads it.
	fill(ctx context.Context, s *subject, size scenario.Point, of load.Driver) (*load.Driver, error)
	// need is how many pages of a pool the server takes; it runs, and is stopped where it must be.
	need(ctx context.Context, s *subject, page int64) (int64, error)
	// options are those of the server for a page size.
	options(page int64) []string
	// warm has the data of a cell in memory, and gives what the server says of its pages, and how many bytes of its
	// memory are to be in them.
	warm(ctx context.Context, s *subject, cell *scenario.Cell) (said string, least int64, err error)
}

// watched is a server that tells of more than its pages: look while the load runs, and end behind it.
type watched interface {
	look(ctx context.Context)
	end(ctx context.Context, figure func(name string, is float64)) error
}
