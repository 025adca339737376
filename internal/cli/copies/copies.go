// Package copies has the verbs of zfs that change something: those that move a database onto data sets and back, those
// that make, list and remove snapshots, and those that make and remove copies with servers of their own.
package copies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/dblogin"
	"bulkhead/internal/disks"
	"bulkhead/internal/engine"
	"bulkhead/internal/journal"
	"bulkhead/internal/journal/statedir"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/transaction"
)

// Session is what the verbs share with the others.
type Session struct {
	Open  func() (*transaction.Controller, error) // the host and the state directory, to root
	Print func(v any, text func()) error          // answers with a value as JSON, or with text
	Out   io.Writer                               // for people
	Err   io.Writer                               // for what is no answer
	State *string                                 // the state directory; read when a verb runs
	Who   func() string
	// Policy is the policy file; read when a verb runs. Apply puts it in force, and Run is how this program is called
	// for the verb run.
	Policy *string
	Apply  func(ctx context.Context, reason string) error
	Run    func() []string
}

// changing are the flags of verbs that change something.
type changing struct {
	reason string
	dryRun bool
}

func (ch *changing) flags(c *cobra.Command) {
	c.Flags().StringVar(&ch.reason, "reason", "", "why, for the history")
	c.Flags().BoolVar(&ch.dryRun, "dry-run", false, "say what would be done, do nothing")
}

// work is one verb at work.
type work struct {
	Session
	*transaction.Controller
	tools zfs.Tools
}

// begin opens the host, and finds the programs of ZFS.
func (s Session) begin() (*work, error) {
	c, err := s.Open()
	if err != nil {
		return nil, err
	}
	w := &work{Session: s, Controller: c}
	version, err := zfs.Version(c.Host.Root)
	if err == nil && version == "" {
		err = &api.Error{Code: api.CodeFailed, Err: errors.New("the module of ZFS is not loaded"),
			Hint: "`bulkhead zfs check` says how this distribution has it"}
	}
	if err == nil {
		w.tools, err = zfs.Find(c.Host.Root)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return w, nil
}

// lockWait is how long a verb waits for another one that changes snapshots.
const lockWait = 30 * time.Second

// whileAlone does what changes snapshots while nobody else of this program does. It is not the lock of the
// state directory: the agent needs that one, and this may take long.
func (w *work) whileAlone(ctx context.Context, verb string, do func() error) error {
	if err := os.MkdirAll(*w.State, 0o700); err != nil {
		return err
	}
	name := filepath.Join(*w.State, "zfs.lock")
	for end := time.Now().Add(lockWait); ; {
		file, err := statedir.TakeLock(name, statedir.Holder{PID: w.Self.PID, Verb: verb, Who: w.Who(),
			Since: time.Now()})
		if err == nil {
			err = do()
			_ = file.Truncate(0)
			return errors.Join(err, file.Close())
		}
		var locked *statedir.LockedError
		if !errors.As(err, &locked) || time.Now().After(end) {
			return err
		}
		if err := transaction.Sleep(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("%w: %w", err, locked)
		}
	}
}

// note writes the entry of the history. That it cannot be written undoes nothing.
func (w *work) note(ctx context.Context, verb, what, reason, text string) {
	ctx = context.WithoutCancel(ctx)
	lock, err := w.Lock(ctx, verb, w.Who())
	if err == nil {
		_, err = w.Store.Record(journal.Entry{Time: time.Now(), Verb: verb, What: what, By: w.Who(), Reason: reason,
			Outcome: journal.Committed, Text: text})
		lock.Release()
	}
	if err != nil {
		render.Printf(w.Err, "warning: it is done, but not in the history: %v\n", err)
	}
}

// instance finds a running instance and its files.
func (w *work) instance(cmd *cobra.Command, name string) (*disks.Disks, disks.DatabaseFiles, error) {
	d, err := disks.Find(w.Host)
	if err != nil {
		return nil, disks.DatabaseFiles{}, err
	}
	names := []string{}
	for _, db := range d.Databases {
		if db.Instance.Name() == name {
			return d, db, nil
		}
		names = append(names, db.Instance.Name())
	}
	return nil, disks.DatabaseFiles{}, usage.NoInstance(cmd, names, name)
}

// loginOf is how to log in to an instance: as it was given, or as root over the socket of MySQL or MariaDB, which lets
// in by being root where the server has it so. nil is none.
func loginOf(inst engine.Instance, given map[string]*dblogin.Login) (*dblogin.Login, error) {
	if l := given[inst.Name()]; l != nil {
		return l, nil
	}
	if inst.Engine != engine.MySQL || inst.Socket == "" {
		return nil, nil
	}
	return dblogin.Parse("mysql://root@localhost/?socket=" + url.QueryEscape(inst.Socket))
}

// ago is an age for people, of two units at most.
func ago(d time.Duration) string {
	day := 24 * time.Hour
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 2*day:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%d d %d h", d/day, d%day/time.Hour)
}

// lockText says for people what was locked.
func lockText(lock string) string { return cmp.Or(lock, "none: crash-consistent") }
