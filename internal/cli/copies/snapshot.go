package copies

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/backuplock"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/dbsnapshot"
	"bulkhead/internal/disks"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
)

// snapshot is the verb with its flags.
type snapshot struct {
	changing
	dsn        []string
	wait, hold time.Duration
	crash      bool
	retain     bool
}

func (s Session) snapshotCmd() *cobra.Command {
	var f snapshot
	c := &cobra.Command{
		Use:   "snapshot INSTANCE NAME",
		Short: "a snapshot of all files of a database, and where the database stood",
		Long: `snapshot makes one snapshot of every data set that holds files of the instance, all at one moment. One
session of the server holds the lightest lock that keeps its position true meanwhile: BACKUP STAGE BLOCK_COMMIT of
MariaDB 10.4 and later; LOCK INSTANCE FOR BACKUP of MySQL 8, with FLUSH TABLES WITH READ LOCK where tables are without
transactions or the binary log is without GTIDs; FLUSH TABLES WITH READ LOCK of older ones; none of PostgreSQL, which
recovers from its files at one moment as after a crash. The position (binary log, GTID, that of a replica, LSN) is kept
as properties of the snapshot, "bulkhead:…".

The lock is waited for --wait at most, and held --hold at most: then the session is ended, and with it the lock, and
there is no snapshot. The same happens when this program is killed.

A snapshot is refused where it could not be of one moment: files in two pools, or on no ZFS.

--retain then removes older ones of the instance, as the part snapshots of the policy in force has it (zfs prune
--retain). Where that says nothing of the instance there is no snapshot.

MySQL and MariaDB are asked as root over their socket unless --dsn says otherwise. The account needs RELOAD,
PROCESS and REPLICATION CLIENT (MariaDB: BINLOG MONITOR, SLAVE MONITOR), and of MySQL 8 BACKUP_ADMIN and SELECT on
performance_schema.log_status.`,
		Example: `  bulkhead zfs snapshot mysql3306 before-upgrade
  bulkhead zfs snapshot mysql3306 monday --dsn mysql3306=@/root/mysql.dsn
  bulkhead zfs snapshot pg5432 monday --dsn pg5432=@/root/pg.dsn
  bulkhead zfs snapshot mysql3306 quick --crash-consistent    no lock, no position
  bulkhead zfs snapshot mysql3306 nightly-1127 --retain    then older ones go, by the policy`,
		Args: usage.Exactly(2, "say of which instance, and a name: snapshot INSTANCE NAME"),
		RunE: func(cmd *cobra.Command, args []string) error { return s.snapshot(cmd, f, args[0], args[1]) },
	}
	f.flags(c)
	c.Flags().StringArrayVar(&f.dsn, "dsn", nil, usage.LoginsHelp)
	usage.SpanFlag(c, &f.wait, "wait", 5*time.Second, "how long the lock is waited for; others wait behind it")
	usage.SpanFlag(c, &f.hold, "hold", 5*time.Second, "how long the lock is held at most")
	c.Flags().BoolVar(&f.crash, "crash-consistent", false, "take no lock: the copy is as after a crash, and has no "+
		"position")
	c.Flags().BoolVar(&f.retain, "retain", false, "then remove older ones, as the policy in force has it")
	return c
}

func (s Session) snapshot(cmd *cobra.Command, f snapshot, name, text string) error {
	if err := dbsnapshot.CheckName(text); err != nil {
		return usage.Errorf(cmd, "%v", err)
	}
	logins, err := usage.Logins(cmd, f.dsn)
	if err != nil {
		return err
	}
	w, err := s.begin()
	if err != nil {
		return err
	}
	defer w.Close()
	ctx := cmd.Context()
	d, db, err := w.instance(cmd, name)
	if err != nil {
		return err
	}
	keep, err := w.retains(ctx, f, name)
	if err != nil {
		return err
	}
	session, err := w.lockSession(ctx, f, db.Instance, logins)
	if err != nil {
		return err
	}
	if session != nil {
		defer session.Close()
	}
	layout, err := layoutOf(w.Host, d, db, session)
	if err != nil {
		return err
	}
	lock := ""
	if session != nil {
		lock = session.Lock
	}
	if f.dryRun {
		v := map[string]any{"layout": layout, "lock": lock}
		return s.Print(v, func() { printLayout(s, layout, lock, text) })
	}
	v := snapshotted{}
	err = w.whileAlone(ctx, "zfs snapshot", func() error { return w.take(ctx, &v, session, lock, layout, text, keep) })
	if err != nil {
		return err
	}
	outcome := v.Position.String()
	if len(v.Removed) > 0 {
		outcome += "; removed " + strings.Join(v.Removed, ", ")
	}
	w.note(ctx, "zfs snapshot", name+" "+text, f.reason, outcome)
	return errors.Join(s.Print(v, func() {
		printTaken(s, v.Taken)
		for _, old := range v.Removed {
			render.Printf(s.Out, "removed: %s\n", old)
		}
	}), v.failed)
}

// take takes the snapshot, and removes what a rule then lets go; nil is none.
func (w *work) take(ctx context.Context, v *snapshotted, session *backuplock.Session, lock string,
	layout dbsnapshot.Layout, name string, keep *dbsnapshot.Rule) (err error) {
	var server dbsnapshot.Server
	if session != nil {
		server = session
	}
	if v.Taken, err = dbsnapshot.Take(ctx, w.tools, server, lock, layout, name); err == nil && keep != nil {
		_, v.Removed, v.failed = w.retain(ctx, func(string) dbsnapshot.Rule { return *keep }, false)
	}
	return waited(err)
}

// snapshotted is what snapshot prints.
type snapshotted struct {
	*dbsnapshot.Taken
	Removed []string `json:"removed,omitempty"` // older snapshots
	failed  error    // what could not be removed; the snapshot is there
}

// lockSession logs in to the server that is to lock; nil where nothing is locked and nobody is asked.
func (w *work) lockSession(ctx context.Context, f snapshot, inst engine.Instance, logins map[string]*dblogin.Login) (
	*backuplock.Session, error) {
	if f.crash {
		return nil, nil //nolint:nilnil // nobody is asked
	}
	name := inst.Name()
	login, err := loginOf(inst, logins)
	switch {
	case err != nil:
		return nil, err
	case login != nil:
		session, err := backuplock.Open(ctx, login, backuplock.Limits{Wait: f.wait, Hold: f.hold})
		if err != nil {
			return nil, noSession(name, err)
		}
		return session, nil
	case inst.Engine != engine.PostgreSQL: // which needs no lock
		return nil, noSession(name, errors.New("it has no socket that is known"))
	}
	render.Printf(w.Err, "note: without --dsn %s is not asked: no LSN and no settings are kept\n", name)
	return nil, nil //nolint:nilnil // PostgreSQL needs no lock
}

// noSession is the error of a server that cannot be asked.
func noSession(name string, err error) error {
	return &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("log in to %s: %w", name, err),
		Hint: "--dsn " + name + "=@FILE says how; --crash-consistent takes no lock, and asks nothing"}
}

// waited adds what helps where a server did not lock in time.
func waited(err error) error {
	if err == nil || api.HintOf(err) != "" || errors.Is(err, context.Canceled) {
		return err
	}
	return &api.Error{Code: api.CodeOf(err), Err: err, Hint: "nothing was kept. `SHOW PROCESSLIST` shows long " +
		"statements and transactions, and accounts need the rights that --help names; --wait waits longer, " +
		"--crash-consistent takes no lock"}
}

// layoutOf finds the data sets of an instance, with what its server says of them.
func layoutOf(h *host.Host, d *disks.Disks, db disks.DatabaseFiles, session *backuplock.Session) (dbsnapshot.Layout,
	error) {
	var outside []string
	if session != nil {
		outside = session.Files
	}
	l, err := dbsnapshot.Find(d.Storage, db, outside)
	if err != nil {
		return l, err
	}
	if session != nil {
		l.Version, l.Settings = session.Version, session.Settings
	}
	procs, err := h.Proc.Processes(procfs.Options{PIDs: []int{db.Instance.Main.PID}})
	if err != nil || len(procs) != 1 {
		return l, api.Errorf(api.CodeFailed, "is it still running?", "look at the server of %s: %w", l.Instance, err)
	}
	l.Program = procs[0].Exe
	return l, nil
}

func printLayout(s Session, l dbsnapshot.Layout, lock, name string) {
	render.Printf(s.Out, "would lock: %s\nwould make:\n", lockText(lock))
	for _, d := range l.Datasets {
		render.Printf(s.Out, "  %s@%s\n", d.Name, name)
	}
}

func printTaken(s Session, t *dbsnapshot.Taken) {
	if t.Replaced {
		render.Printf(s.Err, "note: a snapshot %s was there that somebody was stopped halfway with: it was replaced\n",
			t.Name)
	}
	for _, n := range t.Notes {
		render.Printf(s.Err, "note: %s\n", n)
	}
	render.Printf(s.Out, "%s@%s: ", t.Layout.Instance, t.Name)
	for i, d := range t.Layout.Datasets {
		if i > 0 {
			render.Printf(s.Out, ", ")
		}
		render.Printf(s.Out, "%s", d.Name)
	}
	render.Printf(s.Out, " at one moment\nlock: %s", lockText(t.Lock))
	if t.Lock != "" {
		render.Printf(s.Out, ", held %.0f ms", t.Held*1000)
	}
	render.Println(s.Out)
	if p := t.Position.String(); p != "" {
		render.Printf(s.Out, "position: %s\n", p)
	}
}
