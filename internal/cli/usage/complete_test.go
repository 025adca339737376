package usage

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestComplete(t *testing.T) {
	root := &cobra.Command{Use: "bulkhead"}
	for _, name := range []string{"status", "set", "unset", "run", "move", "check"} {
		root.AddCommand(&cobra.Command{Use: name, RunE: func(*cobra.Command, []string) error { return nil }})
	}
	Complete(root, func(context.Context) []string { return []string{"shop", "shop/backup", "web"} })
	for _, tt := range []struct{ words, want, not string }{
		{"status sh", "shop shop/backup", "web"},
		{"status shop sh", "shop/backup", ""},
		{"set we", "web:", "shop:"},
		{"set shop:cpu.l", "shop:cpu.limit=", ""},
		{"set web:cpu.limit=1 shop/backup:tas", "shop/backup:tasks=", ""},
		{"unset shop:io.write.", "shop:io.write.bandwidth shop:io.write.iops", "shop:io.read.iops"},
		{"run w", "web", "shop"},
		{"move web ", ":4", "web"},
		{"run web ", ":0", "shop"},
		{"check ", ":4", "web"},
	} {
		var out strings.Builder
		root.SetOut(&out)
		root.SetErr(&strings.Builder{})
		root.SetArgs(append([]string{"__complete"}, strings.Split(tt.words, " ")...))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		got := strings.Fields(out.String())
		for _, want := range strings.Fields(tt.want) {
			if !slices.Contains(got, want) {
				t.Errorf("%q offers %q, not %s", tt.words, got, want)
			}
		}
		if tt.not != "" && slices.Contains(got, tt.not) {
			t.Errorf("%q offers %s", tt.words, tt.not)
		}
	}
}
