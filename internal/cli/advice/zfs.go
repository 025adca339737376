package advice

import (
	"cmp"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"bulkhead/internal/advise"
	"bulkhead/internal/advise/gather"
	"bulkhead/internal/advise/gather/zfsdata"
	"bulkhead/internal/advise/rule"
	"bulkhead/internal/api"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/policy"
	"bulkhead/internal/transaction"
)

// ZFS gives the verb zfs: databases on ZFS.
func ZFS(out io.Writer, look func() (*transaction.Controller, error), print func(v any, text func()) error,
) *cobra.Command {
	c := &cobra.Command{
		Use:   "zfs",
		Short: "databases on ZFS: a look, the move onto it, snapshots, copies",
		Long: "zfs looks at databases on ZFS, moves them onto data sets and back, makes, lists and removes snapshots " +
			"of them, and copies with servers of their own out of these.",
		Example: `  bulkhead zfs check
  bulkhead zfs plan mysql3306 --pool tank
  bulkhead zfs snapshot mysql3306 before-upgrade
  bulkhead zfs clone mysql3306@before-upgrade --as dev1 --class developer`,
	}
	c.AddCommand(zfsCheckCmd(out, look, print))
	return c
}

// zfsCheck is what zfs check prints.
type zfsCheck struct {
	*zfsdata.Layout
	// Install says how the module gets here where it is not loaded.
	Install string         `json:"install,omitempty"`
	Report  *advise.Report `json:"report"`
}

func zfsCheckCmd(out io.Writer, look func() (*transaction.Controller, error), print answer) *cobra.Command {
	var dsn []string
	c := &cobra.Command{
		Use:   "check [INSTANCE]",
		Short: "pools, data sets below each instance, the cache, and what does not suit",
		Long: `check shows the pools of ZFS, the data sets that hold files of each instance with their properties and
where each is set, and the cache of ZFS. It holds them against the rules of advise: records against pages, compression,
what is cached twice, sync, log devices, the bound of the cache, doublewrite. It asks zfs(8) and zpool(8), which take
root where /dev/zfs is for root alone, and waits for them no longer than some seconds. It changes nothing.`,
		Example: `  bulkhead zfs check                   every instance
  bulkhead zfs check mysql3306 --dsn mysql3306=@/root/mysql.dsn
                                       one, and what its server says of settings`,
		Args: usage.AtMostOne,
		RunE: func(cmd *cobra.Command, args []string) error {
			logins, err := usage.Logins(cmd, dsn)
			if err != nil {
				return err
			}
			rules, err := rule.With(siteRules)
			if err != nil {
				return err
			}
			c, err := look()
			if err != nil {
				return err
			}
			defer c.Close()
			layout, err := zfsdata.Read(cmd.Context(), c.Host, zfs.Tools{}, zfs.Limit)
			if err != nil {
				return &api.Error{Code: api.CodeFailed, Err: err}
			}
			facts := factsOf(cmd, c, logins, gather.AreaTime)
			o := advise.Options{Today: time.Now().Format(time.DateOnly)}
			if len(args) == 1 {
				names := []string{}
				for _, i := range facts.Instances {
					names = append(names, i.Name)
				}
				if o.Instance = args[0]; !slices.Contains(names, o.Instance) {
					return usage.NoInstance(cmd, names, o.Instance)
				}
				layout.Places = slices.DeleteFunc(layout.Places, func(p zfsdata.Place) bool {
					return p.Instance != o.Instance
				})
			}
			v := &zfsCheck{Layout: layout, Report: advise.Run(ofZFS(rules), facts, o)}
			if layout.Module == "" {
				v.Install = howToInstall(c.Host)
			}
			return print(v, func() { printZFS(out, v) })
		},
	}
	c.Flags().StringArrayVar(&dsn, "dsn", nil, usage.LoginsHelp)
	return c
}

// ofZFS are the rules that are about ZFS.
func ofZFS(all *rule.Set) *rule.Set {
	some := *all
	some.Rules = slices.DeleteFunc(slices.Clone(all.Rules), func(r *rule.Rule) bool {
		return !strings.HasPrefix(r.ID, "ZFS-") && r.ID != "IO-25"
	})
	return &some
}

// packages are the ways to the module, by ID or ID_LIKE of os-release(5).
var packages = []struct{ id, how string }{
	{"ubuntu", "apt-get install zfsutils-linux; the kernel of Ubuntu has the module"},
	{"debian", "add contrib to the sources of apt; apt-get install linux-headers-amd64 zfs-dkms zfsutils-linux"},
	{"fedora", "no repository of the distribution has it: https://openzfs.github.io/openzfs-docs/Getting%20Started " +
		"has OpenZFS's own for Fedora and RHEL"},
	{"rhel", "no repository of the distribution has it: https://openzfs.github.io/openzfs-docs/Getting%20Started " +
		"has OpenZFS's own for RHEL"},
	{"suse", "the repository `filesystems` of the Open Build Service has the package zfs"},
	{"arch", "zfs-dkms of the AUR, or the repository archzfs"},
}

// howToInstall is the distribution's way to the module.
func howToInstall(h *host.Host) string {
	text, _ := h.Root.ReadText("/etc/os-release")
	ids := ""
	for line := range strings.Lines(text) {
		if name, value, is := strings.Cut(strings.TrimSpace(line), "="); is && (name == "ID" || name == "ID_LIKE") {
			ids += " " + strings.Trim(value, `"'`)
		}
	}
	for _, p := range packages {
		if slices.ContainsFunc(strings.Fields(ids), func(id string) bool { return strings.HasPrefix(id, p.id) }) {
			return p.how
		}
	}
	return "https://openzfs.github.io/openzfs-docs/Getting%20Started says how"
}

func printZFS(out io.Writer, v *zfsCheck) {
	if v.Module == "" {
		render.Println(out, "The module of ZFS is not loaded. If it is installed, `modprobe zfs` loads it; else:")
		render.Printf(out, "  %s\n\n", v.Install)
	} else {
		render.Printf(out, "ZFS %s\n\n", v.Module)
	}
	if v.Cache != nil {
		asked := "not set"
		if v.Cache.Asked != 0 {
			asked = policy.Bytes(v.Cache.Asked).Human()
		}
		render.Table(out, [][]string{{"CACHE (ARC)", "FLOOR", "MOST IN FORCE", "zfs_arc_max"},
			{policy.Bytes(v.Cache.Size).Human(), policy.Bytes(v.Cache.Min).Human(), policy.Bytes(v.Cache.Max).Human(),
				asked}})
		render.Println(out)
	}
	if len(v.Pools) > 0 {
		pools := [][]string{{"POOL", "STATE", "SIZE", "FREE", "IN PIECES", "ASHIFT", "MADE OF"}}
		for _, p := range v.Pools {
			pools = append(pools, poolRow(p))
		}
		render.Table(out, pools)
		render.Println(out)
	}
	printUses(out, v.Layout)
	printPlaces(out, v.Places)
	for _, t := range v.Trouble {
		render.Printf(out, "not read: %s\n", t)
	}
	printReport(out, v.Report, false)
}

func poolRow(p zfs.Pool) []string {
	parts := []string{}
	for _, d := range p.Vdevs {
		role := ""
		if d.Role != zfs.RoleData {
			role = string(d.Role) + " "
		}
		part := role + d.Name
		if len(d.Parts) > 0 {
			part += " of " + strconv.Itoa(len(d.Parts))
		}
		parts = append(parts, part)
	}
	known := func(n int64, unit string) string {
		if n <= 0 && unit == "" || n < 0 {
			return "-"
		}
		return strconv.FormatInt(n, 10) + unit
	}
	return []string{p.Name, p.State, policy.Bytes(p.Size).Human(), policy.Bytes(p.Free).Human(),
		known(p.Fragmentation, " %"), known(p.Ashift, ""), strings.Join(parts, ", ")}
}

// printPlaces prints each kind of files with its data set and the properties, a mark where one is set there or above.
func printPlaces(out io.Writer, places []zfsdata.Place) {
	on := slices.ContainsFunc(places, func(p zfsdata.Place) bool { return p.Dataset != "" })
	if !on {
		render.Println(out, "No files of a database were found on ZFS.")
		render.Println(out)
		return
	}
	rows := [][]string{append([]string{"INSTANCE", "FILES", "DATA SET"}, zfsdata.Watched...)}
	for _, p := range places {
		row := []string{p.Instance, string(p.Kind), cmp.Or(p.Dataset, "none: "+p.Path+" is on "+p.Filesystem)}
		for _, name := range zfsdata.Watched {
			row = append(row, propertyText(name, p.Properties[name]))
		}
		rows = append(rows, row)
	}
	render.Table(out, rows)
	render.Println(out, "* set on the data set itself, + inherited, else the default")
	render.Println(out)
}

func propertyText(name string, p zfs.Property) string {
	text := cmp.Or(p.Value, "-")
	if n, err := strconv.ParseInt(p.Value, 10, 64); err == nil && name == "recordsize" {
		text = policy.Bytes(n).Human()
	}
	switch {
	case p.Source == "local", p.Source == "received", p.Source == "temporary":
		return text + "*"
	case strings.HasPrefix(p.Source, "inherited"):
		return text + "+"
	}
	return text
}
