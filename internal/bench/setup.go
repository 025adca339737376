package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"bulkhead/internal/bench/database"
	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/matrix"
	"bulkhead/internal/bench/neighbour"
	"bulkhead/internal/bench/pagesize"
	"bulkhead/internal/bench/peer"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/bench/rootfs"
	"bulkhead/internal/bench/sampler"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/proof"
	"bulkhead/internal/scenario"
	"bulkhead/internal/systemd/unitname"
)

// setUp makes the work directory, starts and fills the databases, and makes neighbours and loads ready. What it makes
// is on the undo stack as soon as it is there.
func (r *run) setUp(ctx context.Context) error {
	if err := r.makeSupervisors(); err != nil {
		return err
	}
	r.governor.peer = &peer.Peer{Paths: r.paths, Supervisor: r.supervisor, Proc: r.host.Proc}
	if err := r.makeDir(ctx); err != nil {
		r.undo.Add("end processes", func(context.Context) error { return r.closeSupervisors() })
		return err
	}
	r.supervisor.Mark = r.dir
	r.undo.Add("end processes", func(ctx context.Context) error {
		return errors.Join(r.closeSupervisors(), process.EndMarked(ctx, r.dir))
	})
	if r.far != nil {
		r.far.Mark = r.dir
		if err := r.layWire(ctx); err != nil {
			return err
		}
	}
	if err := r.makeSwap(ctx); err != nil {
		return err
	}
	if err := r.makeMatrix(ctx); err != nil {
		return err
	}
	r.governor.system = newSystemUnderTest(r.options.Binary, r.dir, r.supervisor)
	for _, d := range r.scenario.Databases {
		if err := r.startDatabase(ctx, d); err != nil {
			return err
		}
	}
	if err := r.makeNeighbours(); err != nil {
		return err
	}
	if err := r.makeLoads(ctx); err != nil {
		return err
	}
	tree := cgroup.New(r.machine.facts.Hierarchies)
	r.undo.Add("close the meter", func(context.Context) error { return tree.Close() })
	r.sampler = func(arm scenario.Arm, governed bool, members func(string) []int) *sampler.Sampler {
		return &sampler.Sampler{
			Host: r.host, Tree: tree, Hierarchies: r.machine.facts.Hierarchies, Groups: r.scenario.GroupsOf(arm),
			Databases: r.databases,
			Members:   members, Governed: governed, Nodes: r.nodes(),
			Prefixes: []string{"/" + unitname.TopPrefix, "/" + benchName + "/", "/" + peer.Prefix},
		}
	}
	if len(r.scenario.Peers) > 0 {
		r.undo.Add("take the peer's groups away", r.governor.peer.Release)
	}
	r.undo.Add("release the groups", r.governor.system.releaseAll)
	about := Estimate(r.scenario, r.options)
	r.progress.Begin(about - setUpTime)
	r.progress.Note(fmt.Sprintf("%s: %s; %s of %d arms of %d s, about %s", r.scenario.Name, r.where(),
		proof.Plural(r.options.Rounds, "round"),
		len(r.scenario.Arms)+1, r.options.Seconds, proof.Clock(about-setUpTime)))
	return nil
}

// makeSupervisors makes what starts the run's programs: on a wire one for each end.
func (r *run) makeSupervisors() (err error) {
	if !r.scenario.Wire {
		r.supervisor = process.NewSupervisor()
		return nil
	}
	if r.supervisor, err = process.NewIsolated(); err != nil {
		return err
	}
	if r.far, err = process.NewIsolated(); err != nil {
		return errors.Join(err, r.supervisor.Close())
	}
	return nil
}

// closeSupervisors ends all that the run started, and the namespaces with it.
func (r *run) closeSupervisors() error {
	err := r.supervisor.Close()
	if r.far != nil {
		err = errors.Join(err, r.far.Close())
	}
	return err
}

// where says which servers run.
func (r *run) where() string {
	if len(r.databases) == 0 {
		return "no database"
	}
	parts := make([]string, len(r.databases))
	for i, in := range r.databases {
		parts[i] = fmt.Sprintf("%s on port %d", in.Version, in.Port)
	}
	return strings.Join(parts, ", ")
}

// makeDir makes the work directory, after taking away what a killed run left behind. The directory
// stays when the groups could not be released: it holds the originals.
func (r *run) makeDir(ctx context.Context) error {
	if err := sweep(ctx, r.machine.dir, r.options.Binary, r.supervisor); err != nil {
		return err
	}
	// The run that was killed may have been of another scenario: whoever has libcgroup's programs may have had its
	// groups.
	if r.paths.AddIfThere("lscgroup") && r.paths.AddIfThere("cgdelete") {
		if err := r.governor.peer.Sweep(ctx); err != nil {
			return err
		}
	}
	dir, lock, err := newWorkDir(r.machine.dir)
	if err != nil {
		return err
	}
	r.dir = dir
	if r.far != nil {
		if err := markApart(dir); err != nil {
			return errors.Join(err, lock.Close(), os.RemoveAll(dir))
		}
	}
	r.undo.Add("remove the work directory", func(ctx context.Context) error {
		defer lock.Close()
		if r.governor.system != nil && r.governor.system.unreleased {
			return fmt.Errorf("kept %q: it holds the original settings; `%s --state %q release --all` gives them back",
				dir, r.options.Binary, r.governor.system.state)
		}
		if err := pagesize.Recover(ctx, r.host, dir); err != nil {
			return fmt.Errorf("kept %q: it holds the page sizes as they were, and the next proof tries again: %w", dir,
				err)
		}
		return errors.Join(os.RemoveAll(dir), unpoint())
	})
	if err := pointAt(dir); err != nil {
		return fmt.Errorf("leave a link to the work directory: %w", err)
	}
	r.hog, err = neighbour.Program(r.options.Binary, dir)
	return err
}

// startDatabase makes a server, or the run's place in one that exists.
func (r *run) startDatabase(ctx context.Context, d scenario.Database) error {
	if d.DSN != "" {
		return r.enter(ctx, d.Name)
	}
	r.progress.Phase("starting " + database.KindOf(d).Title + " " + d.Name)
	paths, err := database.Find(ctx, d)
	if err == nil {
		d.Options, err = filled(d.Options, r.texts(), r.value)
	}
	if err != nil {
		return err
	}
	if d.Release != "" {
		r.progress.Note(rootfs.Said(d.Release))
	}
	in, err := database.NewInstance(d, r.dir, r.number(d.Buffer, 0), paths, r.supervisor)
	if err != nil {
		return err
	}
	if err := in.Kind.Install(ctx, in); err != nil {
		return fmt.Errorf("install %s in %q: %w", in.Kind.Title, in.DataDir, err)
	}
	r.undo.Add("stop "+in.Kind.Title, func(context.Context) error { return in.Stop() })
	r.databases = append(r.databases, in)
	return in.Start(ctx, nil)
}

// makeMatrix makes the page sizes of the host those of a matrix.
func (r *run) makeMatrix(ctx context.Context) (err error) {
	if r.scenario.Matrix == nil {
		return nil
	}
	guard := process.Spec{Args: []string{r.options.Binary, "bench", "guard", r.dir}, Session: true,
		DeathSignal: process.Terminate}
	if r.matrix, err = matrix.Open(ctx, r.cells(), r.supervisor, guard, r.dir); err == nil {
		r.undo.Add("put page sizes back", r.matrix.Close)
	}
	return err
}

// filled are options of a server with the quantities that they name.
func filled(options []string, texts map[string]string, value func(string) float64) (all []string, err error) {
	for _, o := range options {
		t, err := scenario.ParseTemplate(o)
		if err == nil {
			o, err = t.Fill(texts, value)
		}
		if err != nil {
			return nil, fmt.Errorf("option %q: %w", o, err)
		}
		all = append(all, o)
	}
	return all, nil
}

func (r *run) database(name string) *database.Instance {
	for _, in := range r.databases {
		if in.Name == name {
			return in
		}
	}
	return nil
}

// makeNeighbours makes the neighbours ready and the files that they overwrite.
func (r *run) makeNeighbours() error {
	r.neighbour = map[string]*neighbour.Neighbour{}
	for _, s := range r.scenario.Neighbours {
		n := &neighbour.Neighbour{
			Neighbour: s, Count: r.number(s.Count, 1), Bytes: int64(r.number(s.Bytes, 128)) << 20,
			Rate: int64(r.number(s.Rate, 0)) << 20, Block: int64(r.number(s.Block, 0)) << 10,
			Database: r.database(s.On), Paths: r.paths,
			Every:  time.Duration(r.number(s.Every, 1)) * time.Second,
			Binary: r.options.Binary, Socket: r.governor.system.socket,
		}
		if s.Kind == "exporter" {
			var err error
			if n.Port, err = database.FreePort(); err != nil {
				return err
			}
		}
		if s.Kind == "disk" {
			n.File = filepath.Join(r.dir, "neighbour-"+s.Name)
			if err := neighbour.PrepareFile(n.File, max(n.Bytes, neighbour.HogBlock)); err != nil {
				return err
			}
		}
		r.neighbour[s.Name] = n
	}
	return nil
}

// makeLoads fills the databases and reads them once, so that every arm finds them in memory.
func (r *run) makeLoads(ctx context.Context) error {
	for _, l := range r.scenario.Loads {
		d := &load.Driver{
			Load: l, Database: r.database(l.On), Loader: load.Loaders[l.Program], Supervisor: r.supervisor, Dir: r.dir,
			Path: r.paths[l.Program], Self: r.options.Binary,
			Threads: max(r.number(l.Threads, r.machine.cpus), 1), Tables: r.number(l.Tables, 1),
			Rows: r.number(l.Rows, 10_000),
			Far:  r.far, Rate: float64(r.number(l.Rate, 0)), Size: r.number(l.Size, 256), Jobs: r.number(l.Jobs, 1),
			Depth: r.number(l.Depth, 1),
		}
		d.Port = load.FirstPort + len(r.drivers)
		r.progress.Phase("filling for " + l.Name)
		if err := d.Accounts(); err != nil {
			return err
		}
		if r.matrix != nil {
			r.drivers = append(r.drivers, d)
			return r.matrix.Fill(ctx, d)
		}
		if err := d.Prepare(ctx); err != nil {
			return err
		}
		r.drivers = append(r.drivers, d)
		if d.Loader.Native != nil || scenario.OnWire(l.Program) {
			continue // there is nothing to warm up
		}
		r.progress.Phase("warming up " + l.Name)
		warm := min(3*time.Second, r.options.length())
		if _, err := d.Run(ctx, warm, nil, r.progress.Rate, nil); err != nil {
			return fmt.Errorf("warm up load %q: %w", l.Name, err)
		}
	}
	return nil
}

// texts are what policies and peers may say of the run.
func (r *run) texts() map[string]string {
	t := map[string]string{"disk": r.machine.dir, "disk.number": r.machine.disk.Number, "nic": load.NearNIC}
	for _, d := range r.drivers {
		t["port."+d.Name] = strconv.Itoa(d.Port)
	}
	for _, in := range r.databases {
		in.Texts(t)
	}
	return t
}
