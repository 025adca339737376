package verdict

import (
	"slices"

	"bulkhead/internal/selinux/policydb"
)

// What verdicts on denials and a check of a host say alike.

// Quoted writes a path as a word of a shell.
func Quoted(path string) string { return quoted(path) }

// Pattern writes a path as an expression of file contexts.
func Pattern(path string) string { return escaped(path) }

// Unconfined says whether a domain is one that only starts others, or that nothing confines.
func Unconfined(domain string) bool { return slices.Contains(starters, domain) }

// Trap says why a boolean opens far more than it seems to; "" is none that is known to.
func Trap(boolean string) string { return traps[boolean] }

// BestPort is, of the types of ports that a domain may use, the one that is named as the domain is, or else the one
// with the fewest ports; "" is none.
func BestPort(domain string, may map[string][]policydb.Port) string { return narrowest(domain, may) }
