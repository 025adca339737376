package cli

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/convert"
	"bulkhead/internal/convert/berx"
	"bulkhead/internal/convert/inforce"
	"bulkhead/internal/convert/libcgroup"
	"bulkhead/internal/convert/unitfile"
	"bulkhead/internal/inspect"
	"bulkhead/internal/policy"
)

// importCmd makes a policy of what a host has, and changes nothing.
func importCmd(s *session) *cobra.Command {
	c := &cobra.Command{
		Use:   "import",
		Short: "a policy from what this host has today",
		Long: `import prints a policy made from files of another program, or from the limits in force. Comments in it
say where each line comes from. What could not be carried over, and why, is said on stderr. Nothing is changed.`,
	}
	c.AddCommand(
		importCgconfigCmd(s),
		importFiles(s, "cgrules", "libcgroup's cgrules.conf and cgrules.d: which processes", conf,
			libcgroup.ImportRules),
		importFiles(s, "slice", "systemd's slices and services: unit files and drop-ins", unitFile, unitfile.Import),
		importFiles(s, "berx", "the JSON of the Oracle document's script", nil, berx.Import),
		importLimitsCmd(s),
	)
	return c
}

// importFiles is a kind of import that reads files. A directory stands for those of its files that wanted picks.
func importFiles(s *session, kind, short string, wanted func(string) bool,
	make func([]policy.Source) (*convert.Result, error)) *cobra.Command {
	return &cobra.Command{
		Use:   kind + " FILE…",
		Short: short,
		Args:  usage.AtLeast(1, "say which files to read"),
		RunE: func(_ *cobra.Command, args []string) error {
			sources, err := readFiles(s.in, args, wanted)
			if err != nil {
				return err
			}
			r, err := make(sources)
			if err != nil {
				return err
			}
			return answerImport(&s.output, r)
		},
	}
}

// readFiles reads the files of an import. "-" is stdin.
func readFiles(in io.Reader, paths []string, wanted func(string) bool) ([]policy.Source, error) {
	var sources []policy.Source
	for _, path := range paths {
		if path == "-" {
			text, err := io.ReadAll(in)
			if err != nil {
				return nil, fmt.Errorf("read stdin: %w", err)
			}
			sources = append(sources, policy.Source{Path: "stdin", Text: string(text)})
		}
	}
	files, err := convert.Read(slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return p == "-" }), wanted)
	return append(sources, files...), err
}

// conf picks the files of a directory such as /etc/cgconfig.d. As libcgroup it takes none from directories below.
func conf(name string) bool { return path.Ext(name) == ".conf" }

// unitFile picks the units of a directory such as /etc/systemd/system, and its directories, which hold drop-ins.
func unitFile(name string) bool {
	return strings.HasSuffix(name, "/") || slices.Contains([]string{".slice", ".service", ".conf"}, path.Ext(name))
}

func importCgconfigCmd(s *session) *cobra.Command {
	var rules []string
	c := importFiles(s, "cgconfig", "libcgroup's cgconfig.conf and cgconfig.d", conf,
		func(sources []policy.Source) (*convert.Result, error) {
			more, err := readFiles(s.in, rules, conf)
			if err != nil {
				return nil, err
			}
			return libcgroup.Import(sources, more)
		})
	c.Flags().StringSliceVar(&rules, "rules", nil,
		"a cgrules.conf whose rules become the groups' match: (`FILE`; may be given more than once)")
	return c
}

func importLimitsCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "limits",
		Short: "the limits in force on this host that bulkhead has not set",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := s.look()
			if err != nil {
				return err
			}
			defer c.Close()
			groups, units, err := inspect.InForce(cmd.Context(), c)
			if err != nil {
				return err
			}
			return answerImport(&s.output, inforce.Import(groups, units))
		},
	}
}

func answerImport(o *output, r *convert.Result) error {
	if !o.json {
		return render.Import(o.text, o.err, r)
	}
	r.Left, r.Changed = render.OrEmpty(r.Left), render.OrEmpty(r.Changed)
	return o.printJSON(r)
}
