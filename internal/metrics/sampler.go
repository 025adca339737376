package metrics

import (
	"context"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/dbstat"
)

// Group says where the figures of a group are.
type Group struct {
	// Dirs are its directories, hierarchy by hierarchy. Those of one hierarchy are added up; what one hierarchy does
	// not count is taken from another.
	Dirs [][]cgroup.Dir
	// Database is the data source name of the database whose work is counted; "" for none.
	Database string
}

// databaseTimeout is how long a database may take to tell how much it has done.
const databaseTimeout = 2 * time.Second

// Sampler takes samples of groups. It keeps the connections to databases open until Close. It is for one goroutine at a
// time.
type Sampler struct {
	databases map[string]*dbstat.Source // by data source name
}

// Read reads what the directories of a group say; false when none of them is there. Those that go meanwhile are left
// out.
func (g Group) Read(t *cgroup.Tree) (all Usage, found bool) {
	return g.read(func(d cgroup.Dir) (*Usage, error) {
		u, err := Read(t, d)
		return &u, err
	})
}

// read leaves what one gives as it is.
func (g Group) read(one func(cgroup.Dir) (*Usage, error)) (all Usage, found bool) {
	for _, dirs := range g.Dirs {
		sum := &nothing
		for i, d := range dirs {
			u, err := one(d)
			if err != nil {
				continue
			}
			found = true
			if i == 0 {
				sum = u
			} else {
				sum = new(*sum)
				sum.Add(u)
			}
		}
		all.Merge(sum)
	}
	return all, found
}

// Take takes a sample of a group.
func (s *Sampler) Take(ctx context.Context, t *cgroup.Tree, g Group) Sample {
	one := Sample{At: time.Now()}
	one.Usage, one.Found = g.Read(t)
	if g.Database == "" {
		return one
	}
	ctx, cancel := context.WithTimeout(ctx, databaseTimeout)
	defer cancel()
	db, err := s.database(g.Database)
	if err == nil {
		one.Work, err = db.Work(ctx)
	}
	one.At, one.WorkErr = time.Now(), err
	return one
}

func (s *Sampler) database(dsn string) (*dbstat.Source, error) {
	if db := s.databases[dsn]; db != nil {
		return db, nil
	}
	db, err := dbstat.Parse(dsn)
	if err != nil {
		return nil, err
	}
	if s.databases == nil {
		s.databases = map[string]*dbstat.Source{}
	}
	s.databases[dsn] = db
	return db, nil
}

// Counter names what a database counts as its work: "Questions". It is "" before the first sample.
func (s *Sampler) Counter(dsn string) string {
	if db := s.databases[dsn]; db != nil {
		return db.Counter
	}
	return ""
}

// Close closes the connections to databases.
func (s *Sampler) Close() {
	for _, db := range s.databases {
		_ = db.Close() // nothing was written
	}
}
