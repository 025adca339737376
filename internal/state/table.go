package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"bulkhead/internal/journal"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/plan/layout"
	"bulkhead/internal/policy"
	"bulkhead/internal/systemd"
)

// Names of the documents.
const (
	DocApplied   = "applied"
	DocOverrides = "overrides"
	DocReleased  = "released"
	DocPins      = "pins"
	DocFreezes   = "freezes"
	DocWindows   = "windows"
	DocLifted    = "lifted"
	DocSkipped   = "skipped"
	DocConflicts = "conflicts"
	DocCanary    = "canary"
	DocTrial     = "trial"
	DocBefore    = "before"
	DocUnits     = "units"
	DocNetwork   = "network"
	DocNumbers   = "numbers"
	DocGone      = "gone"
	DocNext      = "next"
	DocTuned     = "tuned"
	DocSoak      = "selinux-soak"
)

// Documents is the content of the documents. A document that is not there has the zero value.
type Documents struct {
	Applied   *Applied // nil before the first apply
	Overrides []Override
	Released  map[string]bool // by group path; "" is everything
	Pins      []Pin
	Ended     []Pin // pins past their end whose processes live: they leave their groups
	Freezes   []Freeze
	Lifted    []Lifted
	Skipped   []Skipped
	Conflicts []Conflict
	Windows   []string // schedules whose opening is in the history
	Canary    *Canary  // nil when there is none
	Trial     *Trial   // nil when there is none
	Before    Before
	Units     map[string]layout.Kept // by unit: what systemd was told before bulkhead first changed it
	Network   Network
	Numbers   Numbers
	Gone      int // highest revision whose sources were dropped with its history
	Next      Next
	Tuned     []Tuned
	Soak      Soak
}

// Moment decides which of what is recorded still holds.
type Moment struct {
	Boot  string // boot ID of the running kernel
	Now   time.Time
	Alive func(procfs.ID) bool
}

// Document is a row of the table of documents.
type Document struct {
	Name string
	// Content gives a pointer to the field that holds the document's content.
	Content func(*Documents) any
	// Apart marks documents that are read alone, by those who need them, and not on each pass.
	Apart bool
	// Boot marks documents of which nothing that concerns the kernel outlives the boot.
	Boot bool
	// Twice marks documents that nothing else could tell again: a second copy of them lies beside them.
	Twice bool
	// Lost says, for people, what is forgotten when a damaged one is put aside.
	Lost string
	// prune drops what does not hold at a moment any more; nil keeps all.
	prune func(*Documents, Moment)
}

// Table lists every document but the sources of revisions (journal.VersionName), in the order in which a change writes
// them.
var Table = []Document{
	{
		Name: DocApplied, Content: func(d *Documents) any { return &d.Applied },
		Lost: "no policy counts as applied",
		prune: func(d *Documents, _ Moment) {
			if d.Applied != nil && d.Applied.Revision == 0 { // the first one was undone
				d.Applied = nil
			}
		},
	},
	{
		Name: DocOverrides, Content: func(d *Documents) any { return &d.Overrides },
		Lost: "nothing that was set counts",
		prune: func(d *Documents, m Moment) {
			d.Overrides = slices.DeleteFunc(d.Overrides, func(o Override) bool { return o.Ended(m.Now) })
		},
	},
	{
		Name: DocTuned, Content: func(d *Documents) any { return &d.Tuned },
		Lost: "settings of the kernel that `tune apply` made have their old values again",
	},
	{
		Name: DocNumbers, Content: func(d *Documents) any { return &d.Numbers }, Apart: true,
		Lost: "numbers of overrides that are no more may be given again",
	},
	{
		Name: DocReleased, Content: func(d *Documents) any { return &d.Released },
		Lost: "released groups are governed again",
		prune: func(d *Documents, _ Moment) {
			if d.Released == nil {
				d.Released = map[string]bool{}
			}
		},
	},
	{
		Name: DocPins, Content: func(d *Documents) any { return &d.Pins }, Boot: true,
		Lost: "processes that were moved by hand go where the rules want them",
		prune: func(d *Documents, m Moment) {
			d.Pins = slices.DeleteFunc(d.Pins, func(p Pin) bool { return p.Boot != m.Boot || !m.Alive(p.Process) })
			holds := func(p Pin) bool { return p.Ends.IsZero() || m.Now.Before(p.Ends) }
			for _, p := range d.Pins {
				if !holds(p) {
					d.Ended = append(d.Ended, p)
				}
			}
			d.Pins = slices.DeleteFunc(d.Pins, func(p Pin) bool { return !holds(p) })
		},
	},
	{
		Name: DocFreezes, Content: func(d *Documents) any { return &d.Freezes }, Boot: true,
		Lost: "freezes have no end; `bulkhead thaw` ends them",
		prune: func(d *Documents, m Moment) {
			d.Freezes = slices.DeleteFunc(d.Freezes, func(f Freeze) bool { return f.Boot != m.Boot })
		},
	},
	{
		Name: DocWindows, Content: func(d *Documents) any { return &d.Windows },
		Lost: "the history tells of open windows once more",
	},
	{
		Name: DocLifted, Content: func(d *Documents) any { return &d.Lifted },
		Lost: "every memory.high that was lifted is in force again",
		prune: func(d *Documents, _ Moment) {
			d.Lifted = slices.DeleteFunc(d.Lifted, func(l Lifted) bool { return !d.isRevision(l.Revision) })
		},
	},
	{
		Name: DocSkipped, Content: func(d *Documents) any { return &d.Skipped },
		Lost: "windows that the guard undid are in force again",
		prune: func(d *Documents, m Moment) {
			over := func(k Skipped) bool { return !d.isRevision(k.Revision) || !m.Now.Before(k.Until) }
			d.Skipped = slices.DeleteFunc(d.Skipped, over)
		},
	},
	{
		Name: DocConflicts, Content: func(d *Documents) any { return &d.Conflicts }, Boot: true,
		Lost: "limits that somebody else changed are put right at once",
		prune: func(d *Documents, m Moment) {
			d.Conflicts = slices.DeleteFunc(d.Conflicts, func(c Conflict) bool { return c.Boot != m.Boot })
		},
	},
	{
		Name: DocCanary, Content: func(d *Documents) any { return &d.Canary },
		Lost: "the policy that waits for a canary is not applied",
		prune: func(d *Documents, _ Moment) {
			if d.Canary != nil && d.Canary.Group == "" {
				d.Canary = nil
			}
		},
	},
	{
		Name: DocTrial, Content: func(d *Documents) any { return &d.Trial }, Apart: true,
		Lost: "a change that waits to be confirmed stays",
		prune: func(d *Documents, _ Moment) {
			if d.Trial != nil && d.Trial.ID == "" {
				d.Trial = nil
			}
		},
	},
	{
		Name: DocBefore, Content: func(d *Documents) any { return &d.Before }, Apart: true,
		Lost: "a change on trial can only be undone by `bulkhead rollback --to N`",
	},
	{
		Name: DocUnits, Content: func(d *Documents) any { return &d.Units }, Apart: true, Twice: true,
		Lost: "limits of units that bulkhead did not make stay in force",
		prune: func(d *Documents, m Moment) {
			for unit, k := range d.Units {
				if k.Boot != m.Boot {
					k.Overrides = systemd.Lasting(k.Overrides)
					d.Units[unit] = k
				}
			}
		},
	},
	{
		Name: DocNetwork, Content: func(d *Documents) any { return &d.Network }, Apart: true, Boot: true, Twice: true,
		Lost: "queueing disciplines that gave way to bulkhead's are not restored",
		prune: func(d *Documents, m Moment) {
			if d.Network.Boot != m.Boot {
				d.Network = Network{Boot: m.Boot}
			}
		},
	},
	{
		Name: DocGone, Content: func(d *Documents) any { return &d.Gone }, Apart: true,
		Lost: "revisions that went with the history count as never in force",
	},
	{
		Name: DocSoak, Content: func(d *Documents) any { return &d.Soak }, Apart: true,
		Lost: "the checkpoints of `selinux soak`; domains stay permissive until `selinux rollback`",
	},
	{
		Name: DocNext, Content: func(d *Documents) any { return &d.Next }, Apart: true,
		Lost: "a change of an older version of bulkhead that was interrupted is dropped",
	},
}

// Load reads documents as they are on disk: the named ones, or all that are not Apart.
func Load(s *journal.Store, names ...string) (*Documents, error) {
	d := &Documents{}
	for _, row := range Table {
		if len(names) == 0 && row.Apart || len(names) > 0 && !slices.Contains(names, row.Name) {
			continue
		}
		if _, err := s.Load(row.Name, row.Content(d)); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Encode gives documents as they are committed.
func Encode(docs map[string]any) (map[string]json.RawMessage, error) {
	encoded := map[string]json.RawMessage{}
	for name, doc := range docs {
		var err error
		if encoded[name], err = json.Marshal(doc); err != nil {
			return nil, fmt.Errorf("encode %s: %w", name, err)
		}
	}
	return encoded, nil
}

// Prune drops what does not hold at a moment any more.
func (d *Documents) Prune(m Moment) *Documents {
	for _, row := range Table {
		if row.prune != nil {
			row.prune(d, m)
		}
	}
	return d
}

// copyOf is the name of a document's second copy.
func copyOf(name string) string { return name + "-copy" }

// Save writes a document, whole or not at all, and its copy before it. It needs the lock.
func Save(s *journal.Store, name string, v any) error {
	if slices.ContainsFunc(Table, func(row Document) bool { return row.Name == name && row.Twice }) {
		if err := s.Save(copyOf(name), v); err != nil {
			return err
		}
	}
	return s.Save(name, v)
}

// Mend puts damaged documents aside, with a warning each, so that apply and release, the two ways out, work without
// them. One that has a copy gets its content back. Those named are mended; all of them when none is. It needs the
// lock.
func Mend(s *journal.Store, log *slog.Logger, names ...string) error {
	var errs []error
	for _, row := range Table {
		if len(names) == 0 || slices.Contains(names, row.Name) {
			errs = append(errs, row.mend(s, log))
		}
	}
	return errors.Join(errs...)
}

// lost says what is forgotten with a damaged document.
func (row Document) lost() string {
	if row.Twice {
		return "nothing, when its copy is sound; else " + row.Lost
	}
	return row.Lost
}

func (row Document) mend(s *journal.Store, log *slog.Logger) error {
	content := row.Content(&Documents{})
	found, err := s.Load(row.Name, content)
	if errors.Is(err, journal.ErrDamaged) {
		aside, moved := s.SetAside(row.Name)
		if moved != nil {
			return errors.Join(err, moved)
		}
		log.Warn("a damaged document was put aside",
			"document", row.Name, "now", aside, "lost", row.lost(), "err", err)
		err = nil
	}
	if err != nil || found || !row.Twice {
		return err
	}
	content = row.Content(&Documents{})
	if found, err := s.Load(copyOf(row.Name), content); err != nil || !found {
		return nil //nolint:nilerr // a copy that is damaged too is as good as none
	}
	log.Warn("a document that was lost is restored from its copy", "document", row.Name)
	return s.Save(row.Name, content)
}

// isRevision says whether a revision is the one in force.
func (d *Documents) isRevision(n int) bool { return d.Applied != nil && d.Applied.Revision == n }

// Rests says that there is nothing to enforce.
func (d *Documents) Rests() bool { return d.Applied == nil || d.Released[""] }

// Number gives overrides that have none their numbers, and the document that remembers them: no number is given twice,
// not even when its override is no more.
func (d *Documents) Number(overrides []Override) Numbers {
	n := d.Numbers
	for _, o := range slices.Concat(d.Overrides, overrides) {
		n.Override = max(n.Override, o.ID)
	}
	for i := range overrides {
		if overrides[i].ID == 0 {
			n.Override++
			overrides[i].ID = n.Override
		}
	}
	return n
}

// Sources reads the sources of a revision; fs.ErrNotExist when none are kept.
func Sources(s *journal.Store, revision int) (sources []policy.Source, err error) {
	found, err := s.Load(journal.VersionName(revision), &sources)
	if err == nil && !found {
		err = fmt.Errorf("read revision %d: %w", revision, fs.ErrNotExist)
	}
	return sources, err
}

// OnTrial is the change on trial; nil when there is none.
func OnTrial(store *journal.Store) (*Trial, error) {
	d, err := Load(store, DocTrial)
	if err != nil {
		return nil, err
	}
	return d.Prune(Moment{}).Trial, nil
}

// TrialOver sets documents to what they are once nothing is on trial, and gives them.
func TrialOver(docs map[string]any) map[string]any {
	docs[DocTrial], docs[DocBefore], docs[DocCanary] = Trial{}, Before{}, Canary{}
	return docs
}
