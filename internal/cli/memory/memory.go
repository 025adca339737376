// Package memory is the verb memory of the command line: what memory databases have, and where.
package memory

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"slices"

	"github.com/spf13/cobra"

	"bulkhead/internal/advise/gather/hugepages"
	"bulkhead/internal/advise/gather/settings"
	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/engine"
	"bulkhead/internal/engine/recognise"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/memory"
	"bulkhead/internal/transaction"
)

// Command gives the verb. It writes to out, looks at the host through look, and answers with print.
func Command(out io.Writer, look func() (*transaction.Controller, error), print func(v any, text func()) error,
) *cobra.Command {
	var dsn []string
	c := &cobra.Command{
		Use:   "memory [INSTANCE]",
		Short: "what memory databases have: page sizes, huge pages, NUMA nodes, page tables",
		Long: `memory shows what each database has in memory, by what costs nothing to read, how many huge pages each
takes, from which settings, and how large the pool is to be for all of them. With INSTANCE it reads the maps of each of
its processes, one after the other: by page size, shared and private, on which nodes, and whether huge pages are really
used. The kernel walks the page tables for it. A process of hundreds of GiB takes seconds, and may wait meanwhile.
Nothing is changed; bulkhead tune sets the pool.`,
		Example: `  bulkhead memory                     each database, huge pages that they take, pools, NUMA nodes
  bulkhead memory mysql3306           read the maps of one
  bulkhead memory postgresql5432 --dsn postgresql5432=@/root/pg.dsn
                                      what the server says of huge pages, too`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			logins, err := usage.Logins(cmd, dsn)
			if err != nil {
				return err
			}
			c, err := look()
			if err != nil {
				return err
			}
			defer c.Close()
			facts, err := c.Host.Facts()
			if err != nil {
				return err
			}
			m, err := c.Host.Memory(facts)
			if err != nil {
				return err
			}
			all, err := recognise.OfHost(c.Host)
			if err != nil {
				return err
			}
			names, name := []string{}, ""
			for _, i := range all {
				names = append(names, i.Name())
			}
			if len(args) > 0 {
				name = args[0]
			}
			if err := usage.Instances(cmd, names, name, logins); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			ask := func(inst engine.Instance) (settings.Settings, error) {
				return memory.SettingsOf(ctx, c.Host, inst, logins[inst.Name()])
			}
			if len(args) == 0 {
				o, err := summaries(c.Host, facts, m, all, ask)
				if err != nil {
					return err
				}
				return print(o, func() { printOverview(out, o) })
			}
			at := slices.Index(names, name)
			if at < 0 {
				return usage.NoInstance(cmd, names, name)
			}
			d, err := detailOf(ctx, c.Host, facts, m, all[at], ask)
			if errors.Is(err, fs.ErrPermission) {
				return &api.Error{Code: api.CodeFailed, Err: err,
					Hint: "only root may read the maps of other users' processes: run it with sudo"}
			}
			if err != nil {
				return err
			}
			return print(d, func() { printDetail(out, d) })
		},
	}
	c.Flags().StringArrayVar(&dsn, "dsn", nil, usage.LoginsHelp)
	return c
}

// asking gives the settings of an instance, and why it was not asked for them.
type asking func(inst engine.Instance) (settings.Settings, error)

func summaries(h *host.Host, facts *host.Facts, m host.Memory, all []engine.Instance, ask asking) (*overview, error) {
	o := &overview{Machine: m, Instances: []memory.Summary{}, Huge: sizing{Instances: []want{}},
		Warnings: []string{}}
	var needs []hugepages.Need
	for _, inst := range all {
		s, err := memory.Summarize(h, facts, m.THP, inst)
		if errors.Is(err, procfs.ErrExited) {
			continue
		}
		if err != nil {
			return nil, err
		}
		o.Instances = append(o.Instances, s)
		set, trouble := ask(inst)
		if trouble != nil {
			o.Warnings = append(o.Warnings, trouble.Error())
		}
		n := hugepages.Of(h, facts, inst, set)
		needs = append(needs, n)
		o.Huge.Instances = append(o.Huge.Instances, wantOf(inst, n))
	}
	memory.CountOnce(h, o.Instances)
	o.Huge.Pool = hugepages.Together(needs, m)
	return o, nil
}

func detailOf(ctx context.Context, h *host.Host, facts *host.Facts, m host.Memory, inst engine.Instance,
	ask asking) (*detail, error) {
	i, err := memory.Read(ctx, h, facts, m.THP, inst)
	if err != nil {
		return nil, err
	}
	set, trouble := ask(inst)
	said := memory.SaidBy(inst, set)
	d := &detail{Machine: m, Instance: i, Said: render.OrEmpty(said), Imbalance: i.Imbalance(len(m.WithMemory())),
		Warnings: i.Warnings(m), Huge: wantOf(inst, hugepages.Of(h, facts, inst, set))}
	if trouble != nil {
		d.Warnings = append(d.Warnings, trouble.Error())
	}
	if w := i.Contradicts(said); w != "" {
		d.Warnings = append(d.Warnings, w)
	}
	return d, nil
}
