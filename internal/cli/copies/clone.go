package copies

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/dbsnapshot"
	"bulkhead/internal/engine"
	"bulkhead/internal/policy"
	"bulkhead/internal/zfsclone"
	"bulkhead/internal/zfsclone/ingroup"
	"bulkhead/internal/zfslayout"
	"bulkhead/internal/zfslayout/onhost"
)

// cloning are the flags of clone, refresh and drop.
type cloning struct {
	changing
	as, group, class, dir string
	port                  int
	memory, quota         string
	replica               bool
	source                string
	snapshot              string // of refresh
	origin                bool   // of drop: the snapshot, too
	wait                  time.Duration
}

func (f *cloning) common(c *cobra.Command) {
	usage.SpanFlag(c, &f.wait, "wait", 10*time.Minute, "how long the server may take to stop, and to answer")
	f.flags(c)
}

func (s Session) cloneCmd() *cobra.Command {
	var f cloning
	c := &cobra.Command{
		Use:   "clone INSTANCE@SNAPSHOT --as COPY",
		Short: "a copy of a database with a server of its own, in a group of its own",
		Long: `clone makes a copy of a MySQL, MariaDB or PostgreSQL out of a snapshot of zfs snapshot, in seconds and
without copying: each data set is cloned with its properties set anew, auto.cnf, PID files, replication and slots are
removed, links and indexes of logs made to name the copy's own files, and a server is started on an option file of its
own with a port and a socket of its own and a small buffer pool (--memory). The server, its events and subscriptions
touch nothing of the origin's.

It runs in a group: --class makes one from a class of the policy, in policy.d/zfs-COPY.yaml beside the policy file,
which has to include that directory, and applies it. --group takes one that is there; without either it is the one of
the copy's name.

--replica has it replicate --source from where the snapshot was taken, by an account that may replicate. It is refused
where the snapshot has no exact position.

A call that was killed is ended by the same one again, or by zfs drop.`,
		Example: `  bulkhead zfs clone mysql3306@monday --as dev1 --class developer
  bulkhead zfs clone mysql3306@monday --as r1 --replica --source @r1.dsn
  mysql --socket /var/lib/bulkhead-copies/dev1/run/mysqld.sock`,
		Args: usage.Exactly(1, "say of which snapshot: clone INSTANCE@SNAPSHOT --as COPY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.as == "" {
				return usage.Errorf(cmd, "--as says how the copy is called")
			}
			if f.group != "" && f.class != "" {
				return usage.Errorf(cmd, "--class makes a group of the copy's name, --group takes one that is there")
			}
			return s.copying(cmd, f, f.as, "zfs clone", func(ctx context.Context, w *work, m *zfsclone.Maker) error {
				r := zfsclone.Request{Name: f.as, Base: f.dir, Group: cmp.Or(f.group, f.as), Class: f.class,
					Port: f.port, Quota: f.quota, ServerID: 1<<30 + rand.Uint32N(1<<30)} //nolint:gosec // no secret
				var err error
				if r.Memory, err = bytesOf(f.memory); err != nil {
					return usage.Errorf(cmd, "--memory: %v", err)
				}
				if r.Replica, err = sourceOf(cmd, f); err != nil {
					return err
				}
				plan, err := w.copyPlan(ctx, m, r, args[0])
				if err != nil {
					return err
				}
				if f.dryRun {
					return s.Print(plan.Printable(), func() { s.printCopy(plan) })
				}
				rec, err := m.Clone(ctx, plan)
				if err != nil {
					return err
				}
				return w.copied(ctx, f, "zfs clone", rec)
			})
		},
	}
	c.Flags().StringVar(&f.as, "as", "", "the `name` of the copy")
	c.Flags().StringVar(&f.class, "class", "", "make its group from this class of the policy")
	c.Flags().StringVar(&f.group, "group", "", "start it in this group of the policy in force")
	c.Flags().IntVar(&f.port, "port", 0, "its TCP port on 127.0.0.1 (default: a free one)")
	c.Flags().StringVar(&f.memory, "memory", "128MiB", "its innodb_buffer_pool_size or shared_buffers")
	c.Flags().StringVar(&f.quota, "quota", "", "how much it may write in the pool, as zfs(8) has it: 20G")
	c.Flags().StringVar(&f.dir, "dir", "/var/lib/bulkhead-copies", "where each copy has its directory")
	c.Flags().BoolVar(&f.replica, "replica", false, "have it replicate --source")
	c.Flags().StringVar(&f.source, "source", "", "the `DSN` of the server that it replicates, or @FILE with it")
	f.common(c)
	return c
}

func (s Session) printCopy(p *zfsclone.Plan) {
	for line := range strings.Lines(p.Text()) {
		render.Println(s.Out, strings.TrimSuffix(line, "\n"))
	}
}

// bytesOf reads a size.
func bytesOf(text string) (int64, error) {
	for _, u := range []struct {
		unit string
		size int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}} {
		if number, is := strings.CutSuffix(text, u.unit); is {
			if n, err := strconv.ParseInt(number, 10, 32); err == nil && n > 0 {
				return n * u.size, nil
			}
		}
	}
	return 0, fmt.Errorf("write a size such as 256MiB or 2GiB, and not %q", text)
}

// sourceOf is what a copy replicates; nil is nothing.
func sourceOf(cmd *cobra.Command, f cloning) (*zfsclone.Source, error) {
	if f.replica != (f.source != "") {
		return nil, usage.Errorf(cmd, "--replica and --source go together: the account that replicates is not kept "+
			"with a snapshot")
	}
	if !f.replica {
		return nil, nil //nolint:nilnil // it replicates nothing
	}
	dsn, err := dblogin.Secret(f.source)
	if err != nil {
		return nil, err
	}
	l, err := dblogin.Parse(dsn)
	if err != nil {
		return nil, usage.Errorf(cmd, "--source: %v", err)
	}
	if l.Host == "localhost" { // which MySQL takes for a socket
		l.Host = "127.0.0.1"
	}
	return &zfsclone.Source{Host: l.Host, Port: l.Port, User: l.User, Password: l.Password}, nil
}

// named gives the snapshot of a name. Pools may have one each, as one of them came from another host.
func named(sets []dbsnapshot.Set, of string) (found dbsnapshot.Set, err error) {
	pools := []string{}
	for _, s := range sets {
		if s.String() == of {
			found, pools = s, append(pools, s.Pool())
		}
	}
	switch len(pools) {
	case 0:
		err = api.Errorf(api.CodeFailed, "`bulkhead zfs list` shows those that are there, and `bulkhead zfs "+
			"snapshot` makes one", "there is no snapshot %q", of)
	case 1:
	default:
		err = api.Errorf(api.CodeRefused, "`zfs rename` gives that of one pool another name", "there is a snapshot %q "+
			"in each of the pools %s", of, strings.Join(pools, ", "))
	}
	return found, err
}

// copyPlan makes the plan of a copy out of a snapshot.
func (w *work) copyPlan(ctx context.Context, m *zfsclone.Maker, r zfsclone.Request, of string) (*zfsclone.Plan, error) {
	sets, err := dbsnapshot.List(ctx, w.tools)
	if err != nil {
		return nil, err
	}
	if r.Snapshot, err = named(sets, of); err != nil {
		return nil, err
	}
	names := []string{}
	for _, d := range r.Snapshot.Layout.Datasets {
		names = append(names, d.Name)
	}
	if len(names) > 0 {
		if r.Origins, err = w.tools.Datasets(ctx, names...); err != nil {
			return nil, err
		}
	}
	if r.Class == "" {
		if err := w.groupThere(ctx, r.Group); err != nil {
			return nil, err
		}
	}
	if r.Port, err = w.portFor(m, r); err != nil {
		return nil, err
	}
	return zfsclone.Make(r)
}

// portFor is a port that nobody listens on, and that no other copy has.
func (w *work) portFor(m *zfsclone.Maker, r zfsclone.Request) (int, error) {
	taken := map[int]bool{}
	for _, name := range m.Names() {
		rec, err := m.Load(name)
		if err != nil {
			return 0, err
		}
		if name != r.Name {
			taken[rec.Plan.Port] = true
		} else if r.Port == 0 || r.Port == rec.Plan.Port {
			return rec.Plan.Port, nil
		}
	}
	free := func(port int) bool {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		return err == nil && l.Close() == nil && !taken[port]
	}
	if r.Port != 0 {
		if r.Port < 1 || r.Port > 65535 || !free(r.Port) {
			return 0, api.Errorf(api.CodeRefused, "without --port a free one is taken", "the port %d is taken", r.Port)
		}
		return r.Port, nil
	}
	first := 13306
	if r.Snapshot.Layout.Engine == engine.PostgreSQL {
		first = 15432
	}
	for port := first; port < first+1000; port++ {
		if free(port) {
			return port, nil
		}
	}
	return 0, fmt.Errorf("no port from %d to %d is free", first, first+999)
}

// copied notes and prints a copy that is ready.
func (w *work) copied(ctx context.Context, f cloning, verb string, rec *zfsclone.Record) error {
	p := rec.Plan
	w.note(ctx, verb, p.Instance+"@"+p.Snapshot+" as "+p.Name, f.reason, "made "+p.Sets[0].Name+", in the group "+
		p.Group)
	w.unlimited(ctx, p.Group)
	return w.Print(p.Printable(), func() {
		render.Printf(w.Out, "%s runs in the group %s, on %s of %s@%s: port %d, socket %s\n", p.Name, p.Group,
			p.Sets[0].Name, p.Instance, p.Snapshot, p.Port, p.Socket())
	})
}

func (s Session) refreshCmd() *cobra.Command {
	var f cloning
	c := &cobra.Command{
		Use:   "refresh COPY",
		Short: "make a copy anew from a newer snapshot: what was written in it is lost",
		Long: `refresh stops the server of a copy, destroys its data sets and makes it anew, with the same name, port,
group and account of replication, from the newest snapshot of its database or from the one that --snapshot names.
Everything that was written in the copy is lost. It is refused, before anything is stopped, where the copy has snapshots
of its own.`,
		Example: `  bulkhead zfs snapshot mysql3306 tuesday && bulkhead zfs refresh dev1
  bulkhead zfs refresh dev1 --snapshot monday`,
		Args: usage.Exactly(1, "say which copy"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.copying(cmd, f, args[0], "zfs refresh", func(ctx context.Context, w *work,
				m *zfsclone.Maker) error {
				rec, err := m.Known(args[0])
				if err != nil {
					return err
				}
				of, err := w.newest(ctx, rec.Plan.Instance, f.snapshot)
				if err != nil {
					return err
				}
				p := rec.Plan
				plan, err := w.copyPlan(ctx, m, zfsclone.Request{Name: p.Name, Base: p.Base, Group: p.Group,
					Class: p.Class, Port: p.Port, ServerID: p.ServerID, Memory: p.Memory, Quota: p.Quota,
					Replica: p.Replica}, of)
				if err != nil {
					return err
				}
				if f.dryRun {
					return s.Print(plan.Printable(), func() { s.printCopy(plan) })
				}
				if rec, err = m.Refresh(ctx, args[0], plan); err != nil {
					return err
				}
				return w.copied(ctx, f, "zfs refresh", rec)
			})
		},
	}
	c.Flags().StringVar(&f.snapshot, "snapshot", "", "the `name` of the snapshot (default: the newest)")
	f.common(c)
	return c
}

// newest gives the newest complete snapshot of an instance, or the one of a name.
func (w *work) newest(ctx context.Context, instance, name string) (string, error) {
	if name != "" {
		return instance + "@" + name, nil
	}
	sets, err := dbsnapshot.List(ctx, w.tools)
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(sets, func(s dbsnapshot.Set) bool { return s.Instance == instance && s.Complete })
	if at < 0 {
		return "", api.Errorf(api.CodeFailed, "`bulkhead zfs snapshot "+instance+" NAME` makes one", "there is no "+
			"complete snapshot of %s", instance)
	}
	return sets[at].String(), nil
}

func (s Session) dropCmd() *cobra.Command {
	var f cloning
	c := &cobra.Command{
		Use:   "drop COPY",
		Short: "remove a copy: its server, data sets, directories and group",
		Long: `drop stops the server of a copy, unmounts and destroys its data sets, those below others first, and
removes its directories and the group that clone made. What is busy is tried again for ten seconds; then drop says who
uses it. It is refused, before anything is stopped, where the copy has snapshots or others' data sets in it. The
snapshot that the copy was made of stays, unless --origin says that it goes, too, and no other clone needs it. A pool
is never destroyed.`,
		Example: `  bulkhead zfs drop dev1`,
		Args:    usage.Exactly(1, "say which copy"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return s.copying(cmd, f, args[0], "zfs drop", func(ctx context.Context, w *work, m *zfsclone.Maker) error {
				rec, err := m.Known(args[0])
				if err != nil {
					return err
				}
				p := rec.Plan
				if f.dryRun {
					return s.Print(p.Printable(), func() {
						render.Println(s.Out, "would remove:")
						s.printCopy(p)
					})
				}
				if err := m.Drop(ctx, args[0]); err != nil {
					return err
				}
				text := "removed " + p.Sets[0].Name
				if f.origin {
					text += w.dropOrigin(ctx, p)
				}
				w.note(ctx, "zfs drop", args[0], f.reason, text)
				return s.Print(p.Printable(), func() { render.Println(s.Out, text) })
			})
		},
	}
	c.Flags().BoolVar(&f.origin, "origin", false, "remove the snapshot that it was made of, where nobody else needs it")
	f.common(c)
	return c
}

// dropOrigin removes the snapshot of a copy, and says what became of it.
func (w *work) dropOrigin(ctx context.Context, p *zfsclone.Plan) string {
	name, text := p.Instance+"@"+p.Snapshot, ""
	err := w.whileAlone(ctx, "zfs drop", func() error {
		sets, err := dbsnapshot.List(ctx, w.tools)
		pool, _, _ := strings.Cut(p.Sets[0].Name, "/")
		at := slices.IndexFunc(sets, func(s dbsnapshot.Set) bool { return s.String() == name && s.Pool() == pool })
		switch {
		case err != nil:
			return err
		case at < 0:
			text = ", and " + name + " was gone already"
			return nil
		case len(sets[at].Clones) > 0 || sets[at].Holds > 0:
			text = fmt.Sprintf("; %s stays: %q were made of it, and it has %d holds", name, sets[at].Clones,
				sets[at].Holds)
			return nil
		}
		text = " and the snapshot " + name
		return dbsnapshot.Remove(ctx, w.tools, sets[at])
	})
	if err != nil {
		return fmt.Sprintf("; %s stays: %v", name, err)
	}
	return text
}

// copying does what changes a copy, while nobody else does.
func (s Session) copying(cmd *cobra.Command, f cloning, name, verb string,
	do func(context.Context, *work, *zfsclone.Maker) error) error {
	if err := zfsclone.CheckName(name); err != nil {
		return err
	}
	w, err := s.begin()
	if err != nil {
		return err
	}
	defer w.Close()
	w.tools.Limit = time.Minute
	m := &zfsclone.Maker{Records: s.copyRecords(), ZFS: w.tools,
		Group: func(ctx context.Context, p *zfsclone.Plan, there bool) error {
			return w.setGroup(ctx, p, there, f.reason)
		},
		Holders: onhost.Holders(w.Host), Mounts: onhost.MountTable(w.Host),
		Alone: func(ctx context.Context, do func() error) error { return w.whileAlone(ctx, verb, do) },
		Say:   func(text string) { render.Printf(s.Err, "%s %s\n", time.Now().Format(time.TimeOnly), text) }}
	m.Server = func(p *zfsclone.Plan) zfslayout.Server { return ingroup.Of(w.Host, p, s.Run(), f.wait) }
	if f.dryRun {
		return do(cmd.Context(), w, m)
	}
	return w.locked(m.Directory, name, verb, func() error { return do(cmd.Context(), w, m) })
}

// unlimited says which limit a copy's group lacks.
func (w *work) unlimited(ctx context.Context, group string) {
	v, _, err := w.Membership(ctx)
	if err != nil {
		return
	}
	for _, g := range v.Classified.Groups {
		if g.Path != group {
			continue
		}
		for _, key := range []policy.Key{policy.KeyCPULimit, policy.KeyMemoryMax} {
			if _, has := g.Settings.Get(key, ""); !has {
				render.Printf(w.Err, "note: the group %s has no %s: the copy may take from others what it wants "+
					"of it\n", group, key)
			}
		}
	}
}
