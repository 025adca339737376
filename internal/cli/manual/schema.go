package manual

import (
	"io"

	"github.com/spf13/cobra"

	"bulkhead/internal/policy/parse"
)

// SchemaCommand gives the verb that writes the JSON Schema of the policy file to out.
func SchemaCommand(out io.Writer) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "the JSON Schema of the policy file",
		RunE: func(*cobra.Command, []string) error {
			text, err := parse.Schema()
			if err != nil {
				return err
			}
			_, err = out.Write(text)
			return err
		},
	}
}
