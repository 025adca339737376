//go:build root

package avc_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bulkhead/internal/selinux/avc"
)

// policyFor writes a policy, in CIL, that knows what denials name and allows nothing of it.
func policyFor(denials []avc.Denial) string {
	users, roles, types := map[string]bool{}, map[string]bool{"system_r": true}, map[string]bool{"kernel_t": true}
	pairs, classes := map[string]bool{}, map[string]map[string]bool{}
	for _, d := range denials {
		for _, c := range []avc.Context{d.Source, d.Target} {
			users[c.User], roles[c.Role], types[c.Type] = true, true, true
			if c.Role != "object_r" {
				pairs["(roletype "+c.Role+" "+c.Type+")\n"] = true
			}
		}
		if classes[d.Class] == nil {
			classes[d.Class] = map[string]bool{}
		}
		for _, p := range d.Permissions {
			classes[d.Class][p] = true
		}
	}
	users["system_u"] = true
	pairs["(roletype system_r kernel_t)\n"] = true
	var b strings.Builder
	b.WriteString("(handleunknown allow)\n(mls true)\n(sid kernel)\n(sidorder (kernel))\n")
	b.WriteString("(sensitivity s0)\n(sensitivityorder (s0))\n")
	categories := []string{}
	for i := range 1024 {
		categories = append(categories, fmt.Sprintf("c%d", i))
		fmt.Fprintf(&b, "(category c%d)\n", i)
	}
	fmt.Fprintf(&b, "(categoryorder (%s))\n(sensitivitycategory s0 (range c0 c1023))\n", strings.Join(categories, " "))
	for _, name := range slices.Sorted(maps.Keys(classes)) {
		fmt.Fprintf(&b, "(class %s (%s))\n", name, strings.Join(slices.Sorted(maps.Keys(classes[name])), " "))
	}
	fmt.Fprintf(&b, "(classorder (%s))\n", strings.Join(slices.Sorted(maps.Keys(classes)), " "))
	roles["object_r"] = true
	for _, name := range slices.Sorted(maps.Keys(roles)) {
		fmt.Fprintf(&b, "(role %s)\n", name)
	}
	for _, name := range slices.Sorted(maps.Keys(types)) {
		fmt.Fprintf(&b, "(type %s)\n(roletype object_r %s)\n", name, name)
	}
	for _, pair := range slices.Sorted(maps.Keys(pairs)) {
		b.WriteString(pair)
	}
	for _, user := range slices.Sorted(maps.Keys(users)) {
		fmt.Fprintf(&b, "(user %[1]s)\n(userlevel %[1]s (s0))\n(userrange %[1]s ((s0) (s0 (range c0 c1023))))\n", user)
		for _, role := range slices.Sorted(maps.Keys(roles)) {
			fmt.Fprintf(&b, "(userrole %s %s)\n", user, role)
		}
	}
	b.WriteString("(sidcontext kernel (system_u system_r kernel_t ((s0) (s0))))\n(type nobody_t)\n")
	name := slices.Sorted(maps.Keys(classes))[0]
	fmt.Fprintf(&b, "(allow nobody_t nobody_t (%s (%s)))\n", name, slices.Sorted(maps.Keys(classes[name]))[0])
	return b.String()
}

var rule = regexp.MustCompile(`(?m)^(#=|allow ).*$`)

// All samples together get the same rules from audit2allow, and with LONG=1 each alone: it takes a second for each.
func TestAudit2allow(t *testing.T) {
	for _, tool := range []string{"audit2allow", "secilc"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("%v: `make deps` installs it", err)
		}
	}
	logs := samples(t)
	all := ""
	for _, text := range logs {
		all += text
	}
	if os.Getenv("LONG") == "" {
		logs = map[string]string{}
	}
	logs["all"] = all
	for name, text := range logs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(rule.FindAllString(rulesOf(read(t, text)), -1), "\n")
			if want, said := audit2allow(t, text); got != want {
				t.Errorf("the rules are\n%s\nand audit2allow's\n%s\nof its\n%s", got, want, said)
			}
		})
	}
}

// audit2allow gives the rules that it makes of a log, and all that it says.
func audit2allow(t *testing.T, text string) (rules, said string) {
	t.Helper()
	dir := t.TempDir()
	cil, policy, log := filepath.Join(dir, "a.cil"), filepath.Join(dir, "policy"), filepath.Join(dir, "log")
	for file, content := range map[string]string{cil: policyFor(read(t, text).Denials), log: text} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("secilc", "-o", policy, "-f", "/dev/null", cil).CombinedOutput(); err != nil {
		t.Fatalf("secilc: %v\n%s", err, out)
	}
	out, err := exec.Command("audit2allow", "-p", policy, "-i", log).CombinedOutput()
	if err != nil {
		t.Fatalf("audit2allow: %v\n%s", err, out)
	}
	return strings.Join(rule.FindAllString(string(out), -1), "\n"), string(out)
}
