package copies

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/zfsclone"
	"bulkhead/internal/zfsclone/ingroup"
)

func (s Session) startCmd() *cobra.Command {
	var f cloning
	c := &cobra.Command{
		Use:   "start [COPY]",
		Short: "start the servers of copies that do not run, as after a boot",
		Long: `start mounts the data sets of a copy where they are not mounted, starts its server in its group and waits
until it answers. Without a name it does so for each copy that is whole and does not run. What was written in a copy is
there again: only refresh makes it anew. The policy has to be in force before, with the groups of the copies.

Nothing starts copies when the host does. A unit of systemd or cron (@reboot) that calls this does.`,
		Example: `  bulkhead zfs start dev1
  bulkhead zfs start               each that does not run`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			names := args
			if len(args) == 0 {
				names = s.copyRecords().Names()
			}
			started := []string{}
			var failed error
			for _, name := range names {
				err := s.copying(cmd, f, name, "zfs start", func(ctx context.Context, w *work,
					m *zfsclone.Maker) error {
					done, err := w.startCopy(ctx, m, f, name, len(args) == 0)
					if done {
						started = append(started, name)
					}
					return err
				})
				failed = errors.Join(failed, err)
			}
			key := "started"
			if f.dryRun {
				key = "would_start"
			}
			return errors.Join(s.Print(map[string]any{key: started}, func() {
				if len(started) == 0 && failed == nil {
					render.Println(s.Out, "No copy had to be started.")
				}
			}), failed)
		},
	}
	f.common(c)
	return c
}

// startCopy starts one. Of all, one that is not whole is only named.
func (w *work) startCopy(ctx context.Context, m *zfsclone.Maker, f cloning, name string, all bool) (done bool,
	err error) {
	rec, err := m.Known(name)
	if err != nil {
		return false, err
	}
	p := rec.Plan
	if all && rec.Phase != zfsclone.Ready {
		render.Printf(w.Err, "note: the copy %s is %s, and not started\n", name, rec.Phase)
		return false, nil
	}
	if f.dryRun {
		running, err := m.Server(p).Running(ctx)
		if err == nil && !running {
			render.Printf(w.Err, "would start %s in the group %s\n", name, p.Group)
		}
		return err == nil && !running, err
	}
	if done, err = m.Start(ctx, name); err != nil || !done {
		return false, err
	}
	w.note(ctx, "zfs start", name, f.reason, "in the group "+p.Group)
	render.Printf(w.Err, "%s runs in the group %s: port %d, socket %s\n", name, p.Group, p.Port, p.Socket())
	return true, nil
}

// copyState is a copy as list shows it.
type copyState struct {
	Name    string         `json:"name"`
	Of      string         `json:"of"` // INSTANCE@SNAPSHOT
	Group   string         `json:"group"`
	Port    int            `json:"port"`
	Socket  string         `json:"socket"`
	Phase   zfsclone.Phase `json:"phase"`
	Running bool           `json:"running"`
	Trouble string         `json:"trouble,omitempty"` // why its record or its server could not be read
}

// copies are those of an instance, or of each.
func (w *work) copies(ctx context.Context, instance string) []copyState {
	r, list := w.copyRecords(), []copyState{}
	for _, name := range r.Names() {
		rec, err := r.Load(name)
		if err != nil || rec == nil {
			if err != nil {
				list = append(list, copyState{Name: name, Trouble: err.Error()})
			}
			continue
		}
		p := rec.Plan
		c := copyState{Name: name, Of: p.Instance + "@" + p.Snapshot, Group: p.Group, Port: p.Port, Socket: p.Socket(),
			Phase: rec.Phase}
		if c.Running, err = ingroup.Of(w.Host, p, w.Session.Run(), time.Minute).Running(ctx); err != nil {
			c.Trouble = err.Error()
		}
		if instance == "" || instance == p.Instance {
			list = append(list, c)
		}
	}
	return list
}

// copyRecords are the records of copies.
func (s Session) copyRecords() zfsclone.Records {
	return zfsclone.Records{Directory: filepath.Join(*s.State, "zfs-copies")}
}

func (s Session) printCopies(list []copyState) {
	if len(list) == 0 {
		return
	}
	rows := [][]string{{"COPY", "OF", "GROUP", "PORT", "SERVER"}}
	for _, c := range list {
		server := "runs"
		switch {
		case c.Trouble != "":
			server = "not known: " + c.Trouble
		case c.Phase == zfsclone.Dropping:
			server = "being dropped: `bulkhead zfs drop " + c.Name + "` ends that"
		case c.Phase != zfsclone.Ready:
			server = "not whole: `bulkhead zfs refresh " + c.Name + "` makes it anew, `drop` removes it"
		case !c.Running:
			server = "does not run: `bulkhead zfs start " + c.Name + "`"
		}
		rows = append(rows, []string{c.Name, c.Of, c.Group, strconv.Itoa(c.Port), server})
	}
	render.Println(s.Out)
	render.Table(s.Out, rows)
}
