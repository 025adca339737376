package confinement

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"bulkhead/internal/host"
	"bulkhead/internal/linux/apparmor"
	"bulkhead/internal/linux/sysroot"
	"bulkhead/internal/selinux/places"
)

// rights are those that a server needs by what a path is for.
var rights = map[places.Kind][]apparmor.Right{
	places.Data: {apparmor.Read, apparmor.Write, apparmor.Lock}, places.Log: {apparmor.Write},
	places.Runtime: {apparmor.Write}, places.Temporary: {apparmor.Read, apparmor.Write},
	places.Config: {apparmor.Read}, places.Certificate: {apparmor.Read}, places.Share: {apparmor.Read},
	places.Library: {apparmor.Read, apparmor.Map},
}

// apparmor finds the profiles of the processes, and asks the loaded one of the main process for each path.
func (l *look) apparmor(paths []places.Place) {
	from := apparmor.Host{Root: l.host.Root}
	var main apparmor.Confinement
	for _, m := range l.inst.Members {
		c, err := from.Of(m.ID.PID)
		switch {
		case err != nil && sysroot.IsGone(err):
			continue
		case err != nil:
			l.not("the profile of process %d: %v", m.ID.PID, sysroot.Cause(err))
			continue
		}
		if m.ID == l.inst.Main {
			main = c
		}
		at := slices.IndexFunc(l.found.Profiles, func(p Profile) bool { return p.Confinement == c })
		if at < 0 {
			at = len(l.found.Profiles)
			l.found.Profiles = append(l.found.Profiles, Profile{Confinement: c})
		}
		l.found.Profiles[at].Processes = append(l.found.Profiles[at].Processes, m.ID.PID)
	}
	if main.Profile == "" || main.Mode == "unconfined" {
		return
	}
	for _, p := range paths {
		if err := l.within(main, p); err != nil {
			l.not("whether profile %q allows each path: %v", main.Profile, err)
			return
		}
	}
}

// within asks a profile for a path. Of a directory, what would be in it is asked for.
func (l *look) within(c apparmor.Confinement, p places.Place) error {
	w, err := l.from.Way(l.inst.Main.PID, p.Path)
	if err != nil {
		switch {
		case errors.Is(err, fs.ErrNotExist): // the server ended
		case errors.Is(err, fs.ErrPermission):
			return errors.New("only root may follow paths as the server sees them; run it with sudo")
		default:
			l.not("%s (%s): %v", p.Setting, p.From, err)
		}
		return nil
	}
	real, tree := w.Last().Path, w.Last().Class == "dir"
	if w.Missing != "" {
		real, tree = w.Missing, false
	}
	asked := real
	if tree {
		asked = path.Join(real, "file")
	}
	missing, err := l.options.Missing(c.Profile, asked, rights[p.Kind]...)
	if err != nil || len(missing) == 0 {
		return err
	}
	said := fmt.Sprintf("%s (%s)", p.Setting, p.From)
	all := ""
	for _, right := range rights[p.Kind] {
		all += string(right)
	}
	for i := range l.Rules {
		if r := &l.Rules[i]; r.Instance == l.found.Name && r.Path == real && r.Denials == 0 {
			if !slices.Contains(r.Settings, said) {
				r.Settings = append(r.Settings, said)
			}
			return nil
		}
	}
	r := Rule{Instance: l.found.Name, Profile: c.Profile, Mode: c.Mode, Settings: []string{said}, Path: real,
		File: l.localFile(c.Profile), Rules: []string{fmt.Sprintf("%s %s,", quotedPath(real, ""), all)}}
	for _, m := range missing {
		r.Missing += string(m)
	}
	if tree {
		r.Rules = []string{quotedPath(real, "/") + " r,", fmt.Sprintf("%s %s,", quotedPath(real, "/**"), all)}
	}
	l.Rules = append(l.Rules, r)
	return nil
}

// quotedPath writes a path for a rule: what would be a wildcard there is escaped.
func quotedPath(name, behind string) string {
	var b strings.Builder
	for _, r := range name {
		if strings.ContainsRune(`*?[]{}^\"`, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	if strings.ContainsAny(name, " \t#,") {
		return `"` + b.String() + behind + `"`
	}
	return b.String() + behind
}

// localFile is where a site adds to a profile of a package, which is named after its path; "" where there is none.
func (l *look) localFile(profile string) string {
	name := strings.ReplaceAll(strings.TrimPrefix(profile, "/"), "/", ".")
	if !l.host.Root.Exists("/etc/apparmor.d/" + name) {
		return ""
	}
	return "/etc/apparmor.d/local/" + name
}

// denied adds denials of a log, with the rules that would allow them.
func (r *Report) denied(all []apparmor.Denial, profiles map[string]string, in string) {
	for _, d := range all {
		name, _, _ := strings.Cut(d.Profile, "//") // one below it, or a stack
		instance, ours := profiles[d.Profile]
		if !ours {
			if instance, ours = profiles[name]; !ours {
				continue
			}
		}
		rule := Rule{Instance: instance, Profile: d.Profile, Settings: []string{}, Path: d.Name, Missing: d.Denied,
			Denials: d.Count, In: in, Allowed: d.Allowed, Rules: []string{}}
		switch {
		case d.Operation == "capable":
			rule.Rules = append(rule.Rules, "capability "+d.Denied+",")
		case strings.HasPrefix(d.Name, "/") && asRights(d.Denied) != "":
			rule.Rules = append(rule.Rules, fmt.Sprintf("%s %s,", quotedPath(d.Name, ""), asRights(d.Denied)))
		}
		r.Rules = append(r.Rules, rule)
	}
}

// asRights are the rights of a rule that allows what a log says was denied: making and removing is writing. What was to
// be executed needs a decision, and gets no rule.
func asRights(mask string) (all string) {
	for _, m := range mask {
		right := map[rune]string{'r': "r", 'w': "w", 'a': "w", 'c': "w", 'd': "w", 'k': "k", 'm': "m", 'l': "l"}[m]
		if right == "" {
			return ""
		}
		if !strings.Contains(all, right) {
			all += right
		}
	}
	return all
}

// denials reads those of AppArmor, of the profiles that were found.
func (r *Report) denials(h *host.Host, o Options) {
	profiles := map[string]string{} // to the instance
	for _, i := range r.Instances {
		for _, p := range i.Profiles {
			if p.Profile != "" {
				profiles[p.Profile] = i.Name
			}
		}
	}
	if len(profiles) == 0 {
		return
	}
	for _, name := range o.AuditLogs {
		f, err := h.Root.Open(name)
		if err != nil {
			r.not("denials in %s: %v", name, sysroot.Cause(err))
			continue
		}
		all, cut, err := apparmor.ReadDenials(f)
		f.Close()
		r.denied(all, profiles, name)
		if err != nil || cut {
			r.not("all denials in %s: %v", name, errors.Join(err, map[bool]error{true: errMany}[cut]))
		}
	}
	text, err := o.KernelLog()
	if err != nil {
		r.not("denials in the log of the kernel: %v", err)
		return
	}
	all, _, err := apparmor.ReadDenials(bytes.NewReader(text))
	if err == nil {
		r.denied(all, profiles, "the log of the kernel")
	}
}

var errMany = errors.New("there are too many different ones")
