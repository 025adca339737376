package cli

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"bulkhead/internal/control"
	"bulkhead/internal/convert"
	"bulkhead/internal/policy"
)

// importCmd makes a policy of what a host has. It changes nothing: the policy goes to stdout, what was not carried over to
// stderr.
func (a *app) importCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "import",
		Short: "a policy from what this host has today",
		Long: `import prints a policy made from files of another program, or from the limits in force. Comments in it say where
each line comes from. What could not be carried over, and why, is said on stderr. Nothing is changed.`,
		Example: `  bulkhead import cgconfig /etc/cgconfig.conf /etc/cgconfig.d --rules /etc/cgrules.conf > policy.yaml
  bulkhead import slice /etc/systemd/system/scylla-server.slice > policy.yaml
  bulkhead --policy policy.yaml check`,
	}
	c.AddCommand(
		a.importCgconfigCmd(),
		a.importFiles("cgrules", "libcgroup's cgrules.conf and cgrules.d: which processes", conf, convert.Cgrules),
		a.importFiles("slice", "systemd's slices and services: unit files and drop-ins", unitFile, convert.Slice),
		a.importFiles("berx", "the JSON of the Oracle document's script", nil, convert.Berx),
		a.importLimitsCmd(),
	)
	return c
}

// importFiles is a kind of import that reads files. A directory stands for those of its files that wanted picks.
func (a *app) importFiles(kind, short string, wanted func(string) bool, make func([]policy.Source) (*convert.Result, error)) *cobra.Command {
	return &cobra.Command{
		Use:   kind + " FILE…",
		Short: short,
		Args:  atLeast(1, "say which files to read"),
		RunE: func(_ *cobra.Command, args []string) error {
			sources, err := a.readFiles(args, wanted)
			if err != nil {
				return err
			}
			r, err := make(sources)
			return a.printImport(r, err)
		},
	}
}

// readFiles reads the files of an import. "-" is stdin.
func (a *app) readFiles(paths []string, wanted func(string) bool) ([]policy.Source, error) {
	var sources []policy.Source
	for _, path := range paths {
		if path == "-" {
			text, err := io.ReadAll(a.in)
			if err != nil {
				return nil, fmt.Errorf("read stdin: %w", err)
			}
			sources = append(sources, policy.Source{Path: "stdin", Text: string(text)})
		}
	}
	files, err := convert.Read(slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return p == "-" }), wanted)
	return append(sources, files...), err
}

// conf picks the files of a directory such as /etc/cgconfig.d.
func conf(name string) bool { return path.Ext(name) == ".conf" }

// unitFile picks the files of a directory such as /etc/systemd/system that say something of slices and services.
func unitFile(name string) bool {
	return slices.Contains([]string{".slice", ".service", ".conf"}, path.Ext(name))
}

func (a *app) importCgconfigCmd() *cobra.Command {
	var rules []string
	c := a.importFiles("cgconfig", "libcgroup's cgconfig.conf and cgconfig.d", conf, func(sources []policy.Source) (*convert.Result, error) {
		more, err := a.readFiles(rules, conf)
		if err != nil {
			return nil, err
		}
		return convert.Cgconfig(sources, more)
	})
	c.Flags().StringSliceVar(&rules, "rules", nil, "a cgrules.conf whose rules become the groups' match: (`FILE`; may be given more than once)")
	return c
}

// printImport prints the policy, and says what is not in it.
func (a *app) printImport(r *convert.Result, err error) error {
	if err != nil {
		return err
	}
	if a.json {
		r.Left, r.Changed = list(r.Left, same), list(r.Changed, same)
		return a.printJSON(r)
	}
	if _, err := io.WriteString(a.out, r.Policy); err != nil {
		return err
	}
	a.remarks("carried over, and not quite the same", r.Changed)
	a.remarks("not carried over", r.Left)
	for _, n := range r.Notes {
		fmt.Fprintln(a.err, "note:", n)
	}
	return nil
}

func (a *app) remarks(title string, all []convert.Remark) {
	if len(all) > 0 {
		fmt.Fprintf(a.err, "%s (%d):\n", title, len(all))
	}
	for _, r := range all {
		fmt.Fprintln(a.err, " ", r)
	}
}

func (a *app) importLimitsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "limits",
		Short: "the limits in force on this host that bulkhead has not set",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.look()
			if err != nil {
				return err
			}
			defer c.Close()
			groups, units, err := c.InForce(cmd.Context())
			if err != nil {
				return err
			}
			return a.printImport(convert.Limits(groups, units), nil)
		},
	}
}

// exportCmd writes the policy in the form of another program. It changes nothing.
func (a *app) exportCmd() *cobra.Command {
	c := &cobra.Command{
		Use:   "export",
		Short: "the policy as slices of systemd or as libcgroup's cgconfig.conf",
		Long: `export prints the policy in another program's form, for a host without bulkhead. What that form has no words for is
said on stderr; it goes along where the other program does not read it, so that bulkhead import gives back the same policy.`,
		Example: `  bulkhead --policy policy.yaml export slice --into /etc/systemd/system
  bulkhead --policy policy.yaml export cgconfig > cgconfig.conf`,
	}
	c.AddCommand(a.exportSliceCmd(), a.exportCgconfigCmd())
	return c
}

// exported reads the policy and has it written in another form.
func (a *app) exported(make func(*policy.Policy) *convert.Export) (*convert.Export, error) {
	sources, err := policy.Read(a.policy)
	if err != nil {
		return nil, err
	}
	p, err := policy.Parse(sources)
	if err != nil {
		return nil, err
	}
	return make(p), nil
}

func (a *app) exportCgconfigCmd() *cobra.Command {
	var o convert.ExportOptions
	c := &cobra.Command{
		Use:   "cgconfig",
		Short: "libcgroup's cgconfig.conf",
		RunE: func(*cobra.Command, []string) error {
			if o.Cgroup != 1 && o.Cgroup != 2 {
				return &usageError{command: "bulkhead export cgconfig", err: fmt.Errorf("--cgroup is 1 or 2, not %d", o.Cgroup)}
			}
			x, err := a.exported(func(p *policy.Policy) *convert.Export { return convert.ExportCgconfig(p, o) })
			if err != nil {
				return err
			}
			if a.json {
				x.Left = list(x.Left, same)
				return a.printJSON(x)
			}
			_, err = io.WriteString(a.out, x.Files[0].Text)
			a.remarks("what cgconfig.conf has no words for", x.Left)
			return err
		},
	}
	c.Flags().IntVar(&o.Cgroup, "cgroup", 1, "whose files are named: those of control groups `version` 1 or 2")
	return c
}

func (a *app) exportSliceCmd() *cobra.Command {
	var into string
	c := &cobra.Command{
		Use:   "slice",
		Short: "unit files and drop-ins for a host with systemd",
		RunE: func(*cobra.Command, []string) error {
			x, err := a.exported(convert.ExportSlice)
			if err != nil {
				return err
			}
			switch {
			case into != "":
				err = writeFiles(into, x.Files)
			case a.json:
				x.Left = list(x.Left, same)
				return a.printJSON(x)
			default:
				for i, f := range x.Files {
					if i > 0 {
						fmt.Fprintln(a.out)
					}
					fmt.Fprintf(a.out, "# %s\n%s", f.Path, f.Text)
				}
			}
			if err != nil {
				return err
			}
			a.remarks("what systemd has no setting for", x.Left)
			if into != "" {
				fmt.Fprintf(a.err, "%s written; `systemctl daemon-reload` has systemd read them\n", count(len(x.Files), "file", "files"))
			}
			return nil
		},
	}
	c.Flags().StringVar(&into, "into", "", "write the files into this `directory`, and none that is there already")
	return c
}

// writeFiles writes files that are not there yet: all of them, or none.
func writeFiles(dir string, files []policy.Source) error {
	for _, f := range files {
		if _, err := os.Lstat(filepath.Join(dir, f.Path)); err == nil {
			return &control.Error{Code: control.CodeFailed, Err: fmt.Errorf("write %q: it is there already", filepath.Join(dir, f.Path)), Hint: "export into an empty directory, compare, and move the files"}
		}
	}
	for _, f := range files {
		name := filepath.Join(dir, f.Path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // units are for everybody to read
			return fmt.Errorf("write %q: %w", name, err)
		}
		if err := os.WriteFile(name, []byte(f.Text), 0o644); err != nil { //nolint:gosec // units are for everybody to read
			return fmt.Errorf("write %q: %w", name, err)
		}
	}
	return nil
}
