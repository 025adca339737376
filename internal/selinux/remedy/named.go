package remedy

import (
	"fmt"
	"strings"

	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/check"
	"bulkhead/internal/selinux/verdict"
)

// Named makes verdicts of paths and ports that settings of databases name and that the loaded policy denies: none was
// denied yet, so they have no denials. What makes no setting has no remedy, and is left with its reason.
func Named(findings []check.Finding) (all []verdict.Verdict) {
	for _, f := range findings {
		if !f.Denied {
			continue
		}
		v := verdict.Verdict{Kind: verdict.Label, Source: f.Domain, Target: f.Has, Class: f.Class,
			Permissions: f.Missing, Rule: avc.Rule(f.Domain, f.Has, f.Class, f.Missing), Because: []string{f.Why},
			Fix: f.Fix}
		if len(f.Settings) > 0 {
			v.Because = append(v.Because, "it is set by "+strings.Join(f.Settings, ", "))
		}
		switch f.About {
		case check.PortType:
			v.Kind = verdict.Port
			if f.Want != "" {
				v.Remedies = append(v.Remedies, portOf(f))
			}
		case check.Label:
			v.Remedies = append(v.Remedies, labelOf(f)...)
		}
		all = append(all, v)
	}
	return all
}

func portOf(f check.Finding) verdict.Remedy {
	r := verdict.Remedy{Port: fmt.Sprintf("%s/%d", f.Protocol, f.Port), Types: []string{f.Want}}
	if f.Own {
		r.Owner = f.Has
	}
	return r
}

// labelOf is a file context for a directory with all below it, or the label that the file contexts have. A setting of a
// directory is always one of all below it: where a directory alone is meant, as one on the way to what a setting names,
// it is none.
func labelOf(f check.Finding) []verdict.Remedy {
	r := verdict.Remedy{Path: f.Path, Class: f.Class, Types: []string{f.Want}}
	if f.Entries > 0 {
		r.Class = "dir" // Class is that of what is in it
	}
	switch {
	case f.Want == "" || f.Boolean != "" || r.Class == "dir" && !f.Tree:
		return nil
	case f.Pattern == "" && f.Contexts == f.Want:
		r.Listed = true
	case r.Class != "dir":
		return nil
	}
	return []verdict.Remedy{r}
}
