package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/convert/libcgroup"
	"bulkhead/internal/convert/unitfile"
	"bulkhead/internal/policy"
)

// exportCmd writes the policy in the form of another program. It changes nothing.
func exportCmd(s *session) *cobra.Command {
	c := &cobra.Command{
		Use:   "export",
		Short: "the policy as slices of systemd or as libcgroup's cgconfig.conf",
		Long: `export prints the policy in another program's form, for a host without bulkhead. What that form has no
words for is said on stderr; it goes along where the other program does not read it, so that bulkhead import gives
back the same policy.`,
	}
	c.AddCommand(exportSliceCmd(s), exportCgconfigCmd(s))
	return c
}

func exportCgconfigCmd(s *session) *cobra.Command {
	var o libcgroup.Options
	c := &cobra.Command{
		Use:   "cgconfig",
		Short: "libcgroup's cgconfig.conf",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Cgroup != 1 && o.Cgroup != 2 {
				return usage.Errorf(cmd, "--cgroup is 1 or 2, not %d", o.Cgroup)
			}
			p, err := s.parsed()
			if err != nil {
				return err
			}
			x := libcgroup.Export(p, o)
			if s.json {
				x.Left = render.OrEmpty(x.Left)
				return s.printJSON(x)
			}
			_, err = io.WriteString(s.text, x.Files[0].Text)
			render.Remarks(s.err, "what cgconfig.conf has no words for", x.Left)
			return err
		},
	}
	c.Flags().IntVar(&o.Cgroup, "cgroup", 1, "whose files are named: those of control groups `version` 1 or 2")
	return c
}

func exportSliceCmd(s *session) *cobra.Command {
	var into string
	c := &cobra.Command{
		Use:   "slice",
		Short: "unit files and drop-ins for a host with systemd",
		RunE: func(*cobra.Command, []string) error {
			p, err := s.parsed()
			if err != nil {
				return err
			}
			x := unitfile.Export(p)
			switch {
			case into != "":
				err = writeFiles(into, x.Files)
			case s.json:
				x.Left = render.OrEmpty(x.Left)
				return s.printJSON(x)
			default:
				for i, f := range x.Files {
					if i > 0 {
						render.Println(s.text)
					}
					render.Printf(s.text, "# %s\n", f.Path)
					if _, err = io.WriteString(s.text, f.Text); err != nil {
						return err
					}
				}
			}
			if err != nil {
				return err
			}
			render.Remarks(s.err, "what systemd has no setting for", x.Left)
			if into != "" {
				render.Printf(s.err, "%s written; `systemctl daemon-reload` has systemd read them\n",
					render.Count(len(x.Files), "file", "files"))
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
			return &api.Error{Code: api.CodeFailed,
				Err:  fmt.Errorf("write %q: it is there already", filepath.Join(dir, f.Path)),
				Hint: "export into an empty directory, compare, and move the files"}
		}
	}
	for _, f := range files {
		name := filepath.Join(dir, f.Path)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // units are for everybody to read
			return fmt.Errorf("write %q: %w", name, err)
		}
		//nolint:gosec // units are for everybody to read
		if err := os.WriteFile(name, []byte(f.Text), 0o644); err != nil {
			return fmt.Errorf("write %q: %w", name, err)
		}
	}
	return nil
}
