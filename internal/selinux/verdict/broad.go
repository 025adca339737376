package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/policydb"
)

// What a reviewer objects to in a rule. These lists are about rules; what a path or a port should be is never taken
// from them.
var (
	// neverMeant are types of files that no file context is for.
	neverMeant = []string{"default_t", "unlabeled_t", "file_t"}
	// generalTypes are types that files of many programs have.
	generalTypes = []string{"tmp_t", "var_t", "var_lib_t", "var_run_t", "var_log_t", "etc_t", "usr_t", "default_t",
		"unlabeled_t", "file_t", "root_t", "home_root_t", "user_home_t", "user_home_dir_t", "mnt_t", "nfs_t"}
	// starters are domains that start others, or that nothing confines.
	starters = []string{"init_t", "initrc_t", "kernel_t", "unconfined_t", "unconfined_service_t"}
	// capabilities that undo what the other rules hold back.
	capabilities = []string{"dac_override", "dac_read_search", "sys_admin", "sys_ptrace", "sys_module", "setuid",
		"setgid", "mac_admin", "mac_override", "sys_rawio"}
	secrets = []string{"shadow_t", "sshd_key_t"}
	disks   = []string{"fixed_disk_device_t", "nvram_device_t", "memory_device_t", "raw_memory_device_t"}
	// attributes stand for many types.
	attributes = []string{"domain", "file_type", "port_type"}
	// traps are booleans that look narrow and are not.
	traps = map[string]string{
		"nis_enabled":                 "it lets most domains use every port",
		"allow_ypbind":                "it lets most domains use every port",
		"daemons_enable_cluster_mode": "it lets all daemons share sockets and files of cluster software",
		"domain_kernel_load_modules":  "it lets every domain have the kernel load modules",
		"mysql_connect_any":           "it lets the server connect to every port of every host",
	}
)

// Flag is one reason why a rule allows too much. Weight is from 1 to 5.
type Flag struct {
	Name   string `json:"name"`
	Weight int    `json:"weight"`
	Why    string `json:"why"`
}

// proposed is a rule that may allow too much.
type proposed struct {
	source, target, class string
	permissions           []string
	sweeps                sweeps
}

// has lists those of some permissions that the rule has.
func (r proposed) has(names ...string) string {
	return join(slices.DeleteFunc(slices.Clone(r.permissions), func(p string) bool {
		return !slices.Contains(names, p)
	}))
}

func (r proposed) on(types []string) bool { return slices.Contains(types, r.target) }

func (r proposed) writes() bool { return slices.ContainsFunc(r.permissions, writes) }

// objections say for a rule why it allows too much; "" is no objection.
var objections = []struct {
	name   string
	weight int
	why    func(r proposed) string
}{
	{"generic target", 4, func(r proposed) string {
		return when(r.on(generalTypes) && r.writes(), r.target+": files of many programs have this type")
	}},
	{"generic port", 4, func(r proposed) string {
		return when(r.on(policydb.GeneralPorts) && r.has("name_bind", "name_connect") != "",
			r.target+": all ports that have no type of their own")
	}},
	{"process sweep", 3, func(r proposed) string {
		if r.class != "process" || r.target == r.source ||
			r.has("getattr", "ptrace", "signal", "sigkill", "signull") == "" {
			return ""
		}
		said := []string{}
		for who, s := range r.sweeps {
			if who.source == r.source && s.domains[r.target] {
				said = append(said, fmt.Sprintf("one of %d domains that %q looked at", len(s.domains), who.comm))
			}
		}
		slices.Sort(said)
		return join(said)
	}},
	{"code execution", 3, func(r proposed) string {
		return when((r.target == "bin_t" || r.target == "shell_exec_t") && r.has("execute_no_trans") != "",
			fmt.Sprintf("%s: any program of the system, in %s", r.target, r.source))
	}},
	{"code execution", 5, func(r proposed) string {
		p := r.has("execmem", "execstack", "execheap", "execmod")
		return when(p != "", p+": memory that is written and then run")
	}},
	{"privilege", 5, func(r proposed) string {
		p := r.has(capabilities...)
		return when(p != "" && strings.HasPrefix(r.class, "cap"), p+": goes round other protections")
	}},
	{"privilege", 5, func(r proposed) string {
		return when(r.target == "security_t" || r.class == "system" && r.has("module_load") != "",
			r.target+" "+r.class+": the policy or the kernel itself")
	}},
	{"secrets", 5, func(r proposed) string {
		return when(r.on(secrets) || (r.target == "passwd_file_t" || r.target == "cert_t") && r.writes(),
			r.target+": passwords and keys")
	}},
	{"raw disk", 5, func(r proposed) string {
		return when(r.on(disks), r.target+": whole disks or memory, past all file permissions")
	}},
	{"attribute target", 5, func(r proposed) string {
		return when(r.on(attributes), r.target+": all types that have this attribute")
	}},
	{"unconfined source", 3, func(r proposed) string {
		return when(r.source == "unconfined_t" || r.source == "unconfined_service_t",
			r.source+": a rule for what nothing confines")
	}},
}

func when(is bool, text string) string {
	if is {
		return text
	}
	return ""
}

// flagsOf says why a rule allows too much.
func flagsOf(source, target, class string, permissions []string, sweeps sweeps) []Flag {
	flags := []Flag{}
	r := proposed{source: source, target: target, class: class, permissions: permissions, sweeps: sweeps}
	for _, o := range objections {
		if why := o.why(r); why != "" {
			flags = append(flags, Flag{Name: o.name, Weight: o.weight, Why: why})
		}
	}
	return flags
}

// writes says whether a permission changes a file.
func writes(permission string) bool {
	switch permission {
	case "write", "append", "create", "unlink", "rename", "link", "setattr", "add_name", "remove_name", "rmdir",
		"reparent", "relabelto", "relabelfrom":
		return true
	}
	return false
}

// sweeper is a program in a domain.
type sweeper struct{ source, comm string }

// sweep is what one looked at.
type sweep struct {
	comm    string
	domains map[string]bool
	asked   map[string]bool
}

func (s *sweep) names() []string       { return slices.Sorted(maps.Keys(s.domains)) }
func (s *sweep) permissions() []string { return slices.Sorted(maps.Keys(s.asked)) }

type sweeps map[sweeper]*sweep

// leastDomains is how many other domains a program looks at that looks at all.
const leastDomains = 3

// sweepsOf finds programs such as ss -p, ps, lsof and pidof, which look at every process.
func sweepsOf(denials []avc.Denial) sweeps {
	all := sweeps{}
	for _, d := range denials {
		if !looks(d) {
			continue
		}
		who := sweeper{d.Source.Type, d.Comm}
		s := all[who]
		if s == nil {
			s = &sweep{comm: d.Comm, domains: map[string]bool{}, asked: map[string]bool{}}
			all[who] = s
		}
		s.domains[d.Target.Type] = true
		for _, p := range d.Permissions {
			s.asked[p] = true
		}
	}
	maps.DeleteFunc(all, func(_ sweeper, s *sweep) bool { return len(s.domains) < leastDomains })
	return all
}

// looks says whether a denial is of one that looks at a process of another domain: itself, or its files in /proc.
func looks(d avc.Denial) bool {
	if d.Comm == "" || d.User || !d.Target.Domain() || d.Target.Type == d.Source.Type {
		return false
	}
	var may []string
	switch d.Class {
	case "process":
		may = []string{"getattr", "ptrace", "signull", "getsched", "getpgid", "getsession", "getcap"}
	case "dir":
		may = []string{"search", "getattr", "read", "open"}
	case "file", "lnk_file":
		may = []string{"getattr", "read", "open"}
	}
	return !slices.ContainsFunc(d.Permissions, func(p string) bool { return !slices.Contains(may, p) })
}

// blames says whether a denial is of a sweep: of another domain's process, or of what a program needs to list processes
// and sockets.
func (s sweeps) blames(d avc.Denial) bool {
	if s[sweeper{d.Source.Type, d.Comm}] == nil {
		return false
	}
	return looks(d) || d.Target.Type == d.Source.Type && (d.Class == "netlink_tcpdiag_socket" || d.Class == "process")
}

func portName(d avc.Denial) string {
	if d.Protocol == "" {
		return fmt.Sprintf("port %d", d.Port)
	}
	return fmt.Sprintf("port %d/%s", d.Port, d.Protocol)
}

func portsOf(denials []avc.Denial) []string {
	ports := distinct(denials, func(d avc.Denial) string {
		if d.Port == 0 {
			return ""
		}
		return portName(d)
	})
	if len(ports) == 0 {
		return []string{"a port without a number in the log"}
	}
	return ports
}

// Unconfined says whether a domain is one that only starts others, or that nothing confines.
func Unconfined(domain string) bool { return slices.Contains(starters, domain) }

// Trap says why a boolean opens far more than it seems to; "" is none that is known to.
func Trap(boolean string) string { return traps[boolean] }

// Quoted is a path as a shell takes it for one word: who may make files chooses their names, and root types the
// command.
func Quoted(at string) string {
	if !strings.ContainsFunc(at, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) &&
			!strings.ContainsRune("/._-+:,=@%", r)
	}) {
		return at
	}
	return "'" + strings.ReplaceAll(at, "'", `'\''`) + "'"
}

// distinct are the values of denials, each once, in their order.
func distinct(denials []avc.Denial, of func(avc.Denial) string) (all []string) {
	seen := map[string]bool{"": true}
	for _, d := range denials {
		if v := of(d); !seen[v] {
			seen[v] = true
			all = append(all, v)
		}
	}
	return all
}

func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func join(words []string) string { return strings.Join(words, ", ") }

// some lists the first of many.
func some(words []string) string {
	const most = 6
	if len(words) <= most {
		return join(words)
	}
	return fmt.Sprintf("%s and %d more", join(words[:most]), len(words)-most)
}
