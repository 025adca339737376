package copies

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/disks"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/zfslayout"
	"bulkhead/internal/zfslayout/onhost"
)

// layout are the flags that a layout is planned by.
type layout struct {
	changing
	pool          string
	devices       []string
	single, files bool
	dsn           []string
	wait          time.Duration
	lose          bool
}

func (f *layout) planFlags(c *cobra.Command) {
	c.Flags().StringVar(&f.pool, "pool", "", "the pool that the data sets are made in")
	c.Flags().StringArrayVar(&f.devices, "device", nil, "a disk for a pool that is not there yet; two or three are "+
		"mirrored")
	c.Flags().BoolVar(&f.single, "single-disk", false, "take a pool that is lost with one disk")
	c.Flags().BoolVar(&f.files, "file-vdev", false, "take a pool that lies in files, for a trial")
	c.Flags().StringArrayVar(&f.dsn, "dsn", nil, usage.LoginsHelp)
}

func (f *layout) waitFlag(c *cobra.Command) {
	usage.SpanFlag(c, &f.wait, "wait", 10*time.Minute, "how long the server may take to stop, and to answer again")
}

func (s Session) layoutPlanCmd() *cobra.Command {
	var f layout
	c := &cobra.Command{
		Use:   "plan INSTANCE --pool NAME",
		Short: "what moving a database onto data sets of ZFS would do",
		Long: `plan shows how a running MySQL, MariaDB or PostgreSQL would be moved onto ZFS: the pool, the data sets
with each property and where it is set, the lines of option files, every step with what it writes, and what stands
against it. It changes nothing. The exit status is 5 where apply would refuse.

A pool that is not there is made of --device: two or three disks become a mirror. A single disk and a file are refused
unless --single-disk or --file-vdev says that this is meant, with a pool that is there, too.`,
		Example: `  bulkhead zfs plan mysql3306 --pool tank
  bulkhead zfs plan mysql3306 --pool db --device /dev/sdb --device /dev/sdc`,
		Args: usage.Exactly(1, "say which instance"),
		RunE: func(cmd *cobra.Command, args []string) error {
			w, err := s.begin()
			if err != nil {
				return err
			}
			defer w.Close()
			p, err := w.planOf(cmd, f, args[0])
			if err != nil {
				return err
			}
			return errors.Join(s.Print(p.Printable(), func() { printLayoutPlan(s.Out, p) }), refused(p))
		},
	}
	f.planFlags(c)
	return c
}

// refused is the error of a plan that something stands against. What it is was printed.
func refused(p *zfslayout.Plan) error {
	if len(p.Refused) == 0 {
		return nil
	}
	return api.Errorf(api.CodeRefused, p.Refused[0].Hint, "%s is not moved: %s", p.Instance, p.Refused[0].What)
}

func (w *work) records() zfslayout.Records {
	return zfslayout.Records{Dir: filepath.Join(*w.State, "zfs-layout")}
}

// planOf makes a plan.
func (w *work) planOf(cmd *cobra.Command, f layout, name string) (*zfslayout.Plan, error) {
	if f.pool == "" {
		return nil, usage.Errorf(cmd, "--pool says in which pool; `zpool list` shows those that are there")
	}
	logins, err := usage.Logins(cmd, f.dsn)
	if err != nil {
		return nil, err
	}
	rec, err := w.records().Load(name)
	if err != nil {
		return nil, err
	}
	d, db, err := w.instance(cmd, name)
	if err != nil {
		return nil, err
	}
	asked := w.asked(db, logins)
	if asked.Units, err = w.units(cmd.Context()); err != nil {
		return nil, err
	}
	facts, err := onhost.Gather(cmd.Context(), w.Host, w.tools, d, db, zfslayout.Request{Instance: name,
		Pool: f.pool, Devices: f.devices, Single: f.single, Files: f.files}, asked)
	if err != nil {
		return nil, err
	}
	facts.Pending = rec != nil
	return zfslayout.Make(facts), nil
}

// asked is who a server of MySQL is asked as.
func (w *work) asked(db disks.DatabaseFiles, logins map[string]*dblogin.Login) onhost.Asked {
	login, err := loginOf(db.Instance, logins)
	note := func(text string) { render.Printf(w.Err, "note: %s\n", text) }
	if err != nil {
		note(err.Error())
	}
	return onhost.Asked{Login: login, Note: note}
}

func (s Session) layoutApplyCmd() *cobra.Command {
	var f layout
	c := &cobra.Command{
		Use:   "apply INSTANCE [--pool NAME]",
		Short: "move a database onto data sets of ZFS, or end a move that was cut off",
		Long: `apply does what plan shows: makes the data sets, stops the server, copies its files and compares each
byte, renames the old directories to NAME` + zfslayout.Suffix + `, edits the option file, mounts, starts the server
and waits until it answers. Each step is written down before. What fails is taken back, unless the server has already
run on ZFS after an earlier call, or its new data cannot be copied back. After a kill or a crash of the host the same
command without --pool goes on, and zfs rollback takes it back.

The old directories stay until zfs finish.`,
		Example: `  bulkhead zfs apply mysql3306 --pool tank --reason "snapshots"
  bulkhead zfs apply mysql3306         go on after a kill`,
		Args: usage.Exactly(1, "say which instance"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.moves(cmd, f, args[0], "zfs apply", func(ctx context.Context, w *work, m *zfslayout.Mover) error {
				rec, err := m.Load(args[0])
				var plan *zfslayout.Plan
				switch {
				case err != nil:
					return err
				case rec != nil && f.pool != "":
					return usage.Errorf(cmd, "a move of %s was begun: without --pool it goes on, and `bulkhead zfs "+
						"rollback` takes it back", args[0])
				case rec != nil:
					plan = rec.Plan
				default:
					if plan, err = w.planOf(cmd, f, args[0]); err == nil {
						err = refused(plan)
					}
				}
				if err != nil {
					return err
				}
				if f.dryRun {
					return s.Print(plan.Printable(), func() { printLayoutPlan(s.Out, plan) })
				}
				if m.Server, err = w.server(ctx, plan, f.wait); err != nil {
					return err
				}
				if _, err = m.Apply(ctx, args[0], plan); err != nil {
					return err
				}
				w.note(ctx, "zfs apply", args[0], f.reason, "moved into "+plan.Sets[0].Name)
				return s.Print(plan.Printable(), func() {
					render.Printf(s.Out, "%s runs on %s. Its old directories are kept as they were:\n", args[0],
						plan.Sets[0].Name)
					printAside(s.Out, plan)
					render.Printf(s.Out, "When all is well: bulkhead zfs finish %s   To go back: bulkhead zfs "+
						"rollback %s\n",
						args[0], args[0])
				})
			})
		},
	}
	f.planFlags(c)
	f.waitFlag(c)
	f.flags(c)
	return c
}

func (s Session) layoutRollbackCmd() *cobra.Command {
	var f layout
	c := &cobra.Command{
		Use:   "rollback INSTANCE",
		Short: "put a database back where it was before zfs apply",
		Long: `rollback takes a move back from wherever it is: stops the server, copies what is new on ZFS since the
move into the old directories and compares each byte, gives directories and option files back, starts the server, and
then destroys the data sets that apply made. A data set with snapshots stays, and a pool always does. It refuses, and
changes nothing, where the old directories are gone or full, or where the files are no longer parted as zfs plan had it.

--lose-new-data goes back to the old directories as they were when the server was stopped for the move: everything
that was written since is lost with the data sets.`,
		Example: `  bulkhead zfs rollback mysql3306
  bulkhead zfs rollback mysql3306 --lose-new-data`,
		Args: usage.Exactly(1, "say which instance"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.moves(cmd, f, args[0], "zfs rollback", func(ctx context.Context, w *work,
				m *zfslayout.Mover) error {
				if err := w.begun(ctx, m, args[0], f); err != nil || f.dryRun {
					return err
				}
				rec, err := m.Rollback(ctx, args[0], f.lose)
				if err != nil {
					return err
				}
				w.note(ctx, "zfs rollback", args[0], f.reason, "moved back out of "+rec.Plan.Sets[0].Name)
				return s.Print(rec.Printable(), func() {
					render.Printf(s.Out, "%s runs where it was: %s\n", args[0], rec.Plan.DataDir)
				})
			})
		},
	}
	f.waitFlag(c)
	c.Flags().BoolVar(&f.lose, "lose-new-data", false, "lose everything that was written since the move")
	f.flags(c)
	return c
}

func (s Session) layoutFinishCmd() *cobra.Command {
	var f layout
	c := &cobra.Command{
		Use:   "finish INSTANCE",
		Short: "remove the old directories after zfs apply",
		Long: `finish removes the directories that zfs apply kept, and nothing else. The server has to answer on its
data sets, and in the directories nothing may be mounted and no file open. There is no way back after it. The option
file as it was stays beside the edited one, as NAME` +
			zfslayout.Suffix + `.`,
		Example: `  bulkhead zfs finish mysql3306 --dry-run
  bulkhead zfs finish mysql3306`,
		Args: usage.Exactly(1, "say which instance"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.moves(cmd, f, args[0], "zfs finish", func(ctx context.Context, w *work, m *zfslayout.Mover) error {
				if err := w.begun(ctx, m, args[0], f); err != nil || f.dryRun {
					return err
				}
				rec, err := m.Finish(ctx, args[0])
				if err != nil {
					return err
				}
				w.note(ctx, "zfs finish", args[0], f.reason, "removed the old directories")
				return s.Print(rec.Printable(), func() {
					render.Println(s.Out, "Removed:")
					printAside(s.Out, rec.Plan)
				})
			})
		},
	}
	f.waitFlag(c)
	f.flags(c)
	return c
}

// begun finds a move with its server. With --dry-run it prints it.
func (w *work) begun(ctx context.Context, m *zfslayout.Mover, name string, f layout) error {
	rec, err := m.Begun(name)
	if err != nil {
		return err
	}
	if f.dryRun {
		return w.Print(rec.Printable(), func() { printRecord(w.Out, rec) })
	}
	m.Server, err = w.server(ctx, rec.Plan, f.wait)
	return err
}

// moves does what changes a move of an instance, while nobody else does.
func (s Session) moves(cmd *cobra.Command, f layout, name, verb string,
	do func(context.Context, *work, *zfslayout.Mover) error) error {
	w, err := s.begin()
	if err != nil {
		return err
	}
	defer w.Close()
	w.tools.Limit, w.Bus.JobTimeout = time.Minute, f.wait
	m := &zfslayout.Mover{Records: w.records(), ZFS: w.tools, Holders: onhost.Holders(w.Host),
		MountTable: onhost.MountTable(w.Host),
		Say:        func(text string) { render.Printf(s.Err, "%s %s\n", time.Now().Format(time.TimeOnly), text) },
		Warn:       func(text string) { render.Printf(s.Err, "note: %s\n", text) }}
	if f.dryRun {
		return do(cmd.Context(), w, m)
	}
	if _, err := m.Load(name); err != nil { // a name that is none makes no file
		return err
	}
	return w.locked(m.Dir, name, verb, func() error { return do(cmd.Context(), w, m) })
}

// locked does what changes the thing of a name in a directory of records, while nobody else does.
func (w *work) locked(dir, name, verb string, do func() error) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := statedir.TakeLock(filepath.Join(dir, name+".lock"), statedir.Holder{PID: w.Self.PID, Verb: verb,
		Who: w.Who(), Since: time.Now()})
	if err != nil {
		return err
	}
	err = do()
	_ = lock.Truncate(0)
	return errors.Join(err, lock.Close())
}

// server is the one of a plan.
func (w *work) server(ctx context.Context, p *zfslayout.Plan, wait time.Duration) (zfslayout.Server, error) {
	server := onhost.HostServer{Host: w.Host, Plan: p, Wait: wait}
	if p.Start.Unit == "" {
		if p.Start.Command == nil {
			return nil, fmt.Errorf("start %s again: the record of its move does not say how", p.Instance)
		}
		return server, nil
	}
	units, err := w.units(ctx)
	if err != nil {
		return nil, err
	}
	if units == nil {
		return nil, api.Errorf(api.CodeFailed, "", "%s was run by %s, and systemd does not run here", p.Instance,
			p.Start.Unit)
	}
	server.Units = units
	return server, nil
}

// units are those of systemd; nil where it does not run.
func (w *work) units(ctx context.Context) (onhost.Units, error) {
	facts, err := w.Host.Facts()
	if err != nil {
		return nil, err
	}
	m, err := w.Manager(ctx, facts)
	if err != nil || m == nil {
		return nil, err
	}
	return m, nil
}
