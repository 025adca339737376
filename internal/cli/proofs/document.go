package proofs

import (
	"cmp"

	"github.com/spf13/cobra"

	"bulkhead/internal/api"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/proof"
)

// document puts results that were written with --out into a document.
func (s Session) document() *cobra.Command {
	var into, commit string
	c := &cobra.Command{
		Use:   "document [RESULT…]",
		Short: "put results into a document, and write it anew",
		Long: `document puts results that "bench SCENARIO --out DIR" wrote (NAME.json) into a Markdown file. It keeps
them beside it, each in place of the one that it had of the scenario, and writes the file anew from all of them. Without
a RESULT it only writes it anew.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if into == "" {
				return usage.Errorf(cmd, "--into FILE says which document")
			}
			var all []proof.Outcome
			for _, path := range args {
				r, err := readResult(path)
				if err != nil {
					return err
				}
				r.Commit = cmp.Or(r.Commit, commit)
				all = append(all, proof.Outcome{Scenario: r.Scenario, Result: r})
			}
			return put(into, all...)
		},
	}
	c.Flags().StringVar(&into, "into", "", "the Markdown `file`")
	c.Flags().StringVar(&commit, "commit", "",
		"the `commit` that the program was built from that measured results in which none is noted")
	return c
}

func readResult(path string) (*proof.Result, error) {
	r, err := proof.ReadFile(path)
	if err != nil {
		return nil, &api.Error{Code: api.CodeUsage, Err: err,
			Hint: "`bulkhead bench SCENARIO --out DIR` writes such files"}
	}
	return r, nil
}

// compare sets two results side by side.
func (s Session) compare() *cobra.Command {
	return &cobra.Command{
		Use:   "compare A B",
		Short: "two results of one scenario beside each other",
		Long: `compare reads two results that "bench SCENARIO --out DIR" wrote (NAME.json), and says for every arm by
how much B differs from A, and whether that is more than the rounds of each differ among themselves.`,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			var results [2]*proof.Result
			for i, path := range args {
				r, err := readResult(path)
				if err != nil {
					return err
				}
				results[i] = r
			}
			c, err := proof.Compare(results[0], results[1])
			if err != nil {
				return &api.Error{Code: api.CodeUsage, Err: err, Hint: "compare two results of one scenario"}
			}
			return s.print(c, c.WriteText)
		},
	}
}
