package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"bulkhead/internal/selinux/avc"
)

// What a reviewer objects to in a rule. These lists are about rules; what a path or a port should be is never taken
// from them.
var (
	// neverMeant are types of files that no file context is for.
	neverMeant = []string{"default_t", "unlabeled_t", "file_t"}
	// generalTypes are types that files of many programs have.
	generalTypes = []string{"tmp_t", "var_t", "var_lib_t", "var_run_t", "var_log_t", "etc_t", "usr_t", "default_t",
		"unlabeled_t", "file_t", "root_t", "home_root_t", "user_home_t", "user_home_dir_t", "mnt_t", "nfs_t"}
	// generalPorts are types of all ports that have no other one.
	generalPorts = []string{"port_t", "unreserved_port_t", "ephemeral_port_t", "reserved_port_t", "hi_reserved_port_t"}
	// starters are domains that start others, or that nothing confines.
	starters = []string{"init_t", "initrc_t", "kernel_t", "unconfined_t", "unconfined_service_t"}
	// capabilities that undo what the other rules hold back.
	capabilities = []string{"dac_override", "dac_read_search", "sys_admin", "sys_ptrace", "sys_module", "setuid",
		"setgid", "mac_admin", "mac_override", "sys_rawio"}
	secrets = []string{"shadow_t", "sshd_key_t"}
	disks   = []string{"fixed_disk_device_t", "nvram_device_t", "memory_device_t", "raw_memory_device_t"}
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

// flagsOf says why a rule allows too much.
func flagsOf(source, target, class string, permissions []string, sweeps sweeps) []Flag {
	flags := []Flag{}
	flag := func(weight int, name, format string, args ...any) {
		flags = append(flags, Flag{Name: name, Weight: weight, Why: fmt.Sprintf(format, args...)})
	}
	has := func(names ...string) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(permissions), func(p string) bool {
			return !slices.Contains(names, p)
		}), ", ")
	}
	if slices.Contains(generalTypes, target) && slices.ContainsFunc(permissions, writes) {
		flag(4, "generic target", "%s: files of many programs have this type", target)
	}
	if slices.Contains(generalPorts, target) && has("name_bind", "name_connect") != "" {
		flag(4, "generic port", "%s: all ports that have no type of their own", target)
	}
	if class == "process" && has("getattr", "ptrace", "signal", "sigkill", "signull") != "" && target != source {
		for who, s := range sweeps {
			if who.source == source && s.domains[target] {
				flag(3, "process sweep", "one of %d domains that %q looked at", len(s.domains), who.comm)
			}
		}
	}
	if (target == "bin_t" || target == "shell_exec_t") && has("execute_no_trans") != "" {
		flag(3, "code execution", "%s: any program of the system, in %s", target, source)
	}
	if p := has("execmem", "execstack", "execheap", "execmod"); p != "" {
		flag(5, "code execution", "%s: memory that is written and then run", p)
	}
	if strings.HasPrefix(class, "capability") || strings.HasPrefix(class, "cap") && strings.Contains(class, "userns") {
		if p := has(capabilities...); p != "" {
			flag(5, "privilege", "%s: goes round other protections", p)
		}
	}
	if target == "security_t" || class == "system" && has("module_load") != "" {
		flag(5, "privilege", "%s %s: the policy or the kernel itself", target, class)
	}
	if slices.Contains(secrets, target) || (target == "passwd_file_t" || target == "cert_t") &&
		slices.ContainsFunc(permissions, writes) {
		flag(5, "secrets", "%s: passwords and keys", target)
	}
	if slices.Contains(disks, target) {
		flag(5, "raw disk", "%s: whole disks or memory, past all file permissions", target)
	}
	if target == "domain" || target == "file_type" || target == "port_type" {
		flag(5, "attribute target", "%s: all types that have this attribute", target)
	}
	if source == "unconfined_t" || source == "unconfined_service_t" {
		flag(3, "unconfined source", "%s: a rule for what nothing confines", source)
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
