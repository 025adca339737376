package selinux

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/selinux/export"
)

// exported is what export says.
type exported struct {
	Dir   string   `json:"dir"`
	Files []string `json:"files"`
	Note  string   `json:"note,omitempty"`
}

// columns of the report.
const columns = 100

func (s Session) export() *cobra.Command {
	var f from
	name := "bulkhead_databases"
	c := &cobra.Command{
		Use:   "export DIR [FILE]",
		Short: "write what plan says as files from which another team builds a package",
		Long: `export writes into DIR, which it makes, or which is yours alone and empty: the module that is needed
(NAME.te with the rules, NAME.fc with the file contexts), the commands that build and install it and set ports, booleans
and labels (apply.sh), those that take it back (undo.sh), and a report for who has to read it, with every verdict, its
reasons and the lines of the log (report.txt, report.json), for its owner alone. Nothing else is changed, and "selinux
apply" need never run.

FILE is a log of this host, as for plan.`,
		Example: `  bulkhead selinux export /root/selinux-db
  bulkhead selinux export /root/selinux-db --module site_databases`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usage.Errorf(cmd, "say where to: selinux export DIR")
			}
			return usage.AtMostOne(cmd, args[1:])
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if !export.Valid(name) {
				return usage.Errorf(cmd, "--module: %q is no name of a module: letters, digits and _, a letter first",
					name)
			}
			m, err := s.remedies(cmd, args[1:], &f, false)
			if err != nil {
				return err
			}
			e := exported{Dir: args[0], Files: []string{}, Note: m.Note}
			if m.Note == "" {
				if e.Files, err = s.write(args[0], name, m); err != nil {
					return failed(err, "name a directory that is not there yet, or is yours alone "+
						"and empty")
				}
			}
			return s.Print(e, func() {
				if e.Note != "" {
					render.Println(s.Out, e.Note)
					return
				}
				render.Printf(s.Out, "written into %s: %s\n", e.Dir, strings.Join(e.Files, ", "))
			})
		},
	}
	f.flags(c)
	c.Flags().StringVar(&name, "module", name, "the `name` of the module")
	return c
}

// write writes the files of a plan. They are those of a directory that was opened once, and none is written over: who
// may write into another one might have planted a link, or change what root runs later.
func (s Session) write(dir, name string, m *made) (names []string, err error) {
	dir = filepath.Clean(dir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make %q: %w", dir, sysroot.Cause(err))
	}
	tree, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open %q: %w", dir, sysroot.Cause(err))
	}
	defer tree.Close()
	if err := ownAndEmpty(tree, dir); err != nil {
		return nil, err
	}
	v := &view{Read: m.read}
	v.fill(m.log, m.found, m.report)
	var text bytes.Buffer
	out := render.Printable(&text, columns)
	render.Println(out, "What SELinux denied to databases of this host, and what puts it right")
	render.Println(out)
	printPlan(out, m.Plan)
	render.Println(out)
	render.Println(out, "EVERY DENIAL")
	printView(out, v)
	data, err := json.MarshalIndent(map[string]any{"plan": m.Plan, "explain": v}, "", "  ")
	if err != nil {
		return nil, err
	}
	for _, f := range append(export.Of(name, m.Plan), export.File{Name: "report.txt", Mode: 0o600, Text: text.String()},
		export.File{Name: "report.json", Mode: 0o600, Text: string(data) + "\n"}) { // as the log of auditd
		if err := writeNew(tree, f); err != nil {
			return nil, &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("write %q: %w", f.Name, sysroot.Cause(err))}
		}
		names = append(names, f.Name)
	}
	return names, nil
}

// ownAndEmpty says why a directory is not ours alone, or not empty.
func ownAndEmpty(tree *os.Root, dir string) error {
	f, err := tree.Open(".")
	if err != nil {
		return fmt.Errorf("read %q: %w", dir, sysroot.Cause(err))
	}
	defer f.Close()
	info, one := f.Stat()
	there, two := f.ReadDir(-1)
	if err := errors.Join(one, two); err != nil {
		return fmt.Errorf("read %q: %w", dir, sysroot.Cause(err))
	}
	const others = 0o022
	owner, is := info.Sys().(*syscall.Stat_t)
	switch {
	case is && int(owner.Uid) != os.Geteuid():
		return fmt.Errorf("%q is of another user, who could change the scripts", dir)
	case info.Mode().Perm()&others != 0:
		return fmt.Errorf("%q: others may write into it, and could change the scripts", dir)
	case len(there) > 0:
		return fmt.Errorf("%q is not empty", dir)
	}
	return nil
}

// writeNew writes a file that is not there yet.
func writeNew(tree *os.Root, f export.File) error {
	to, err := tree.OpenFile(f.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.Mode)
	if err != nil {
		return err
	}
	_, err = to.WriteString(f.Text)
	return errors.Join(err, to.Close())
}
