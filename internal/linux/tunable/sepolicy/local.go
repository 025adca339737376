package sepolicy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"bulkhead/internal/change"
	"bulkhead/internal/linux/selinux"
	"bulkhead/internal/selinux/filecon"
	"bulkhead/internal/selinux/policydb"
)

// Contexts is the actuator of KindContext.
type Contexts struct{ Host }

// Expression is the regular expression of file contexts for a path and all below it.
func Expression(tree string) string { return filecon.Pattern(tree) + "(/.*)?" }

// Read gives the type of the line for the tree, for files of every class. A line with a user or a range of its own,
// which this would not give back, is an error.
func (c Contexts) Read(_ context.Context, tree string) (string, error) {
	lines, err := c.local("file_contexts.local")
	if err != nil {
		return "", err
	}
	for _, words := range lines {
		if len(words) != 2 || words[0] != Expression(tree) {
			continue
		}
		kind, plain := plainType(words[1])
		if !plain {
			return "", foreign("file context of "+tree, words[1])
		}
		return kind, nil
	}
	return "", nil
}

func foreign(what, context string) error {
	return fmt.Errorf("the local %s is %s, which somebody wrote: change it by semanage, or take it out", what, context)
}

// plainType is the type of a context that semanage writes when only the type is named.
func plainType(text string) (kind string, plain bool) {
	kind, plain = strings.CutPrefix(text, "system_u:object_r:")
	kind = strings.TrimSuffix(kind, ":s0")
	return kind, plain && typeName.MatchString(kind)
}

// Write adds the line, changes it or takes it away ("").
func (c Contexts) Write(ctx context.Context, tree, value string) error {
	if err := checkTree(tree); err != nil {
		return err
	}
	if _, err := c.idle(ctx); err != nil {
		return err
	}
	now, err := c.Read(ctx, tree)
	switch {
	case err != nil || now == value:
		return err
	case value == "":
		return c.run(ctx, "semanage", "fcontext", "-d", Expression(tree))
	case !typeName.MatchString(value):
		return fmt.Errorf("%q is not the name of a type", value)
	}
	return c.run(ctx, "semanage", "fcontext", addOrModify(now), "-t", value, Expression(tree))
}

func addOrModify(now string) string {
	if now == "" {
		return "-a"
	}
	return "-m"
}

// Same compares types.
func (Contexts) Same(_, want, got string) bool { return want == got }

// Undo gives the line back that was there, or takes ours away.
func (c Contexts) Undo(ctx context.Context, ch change.Change) (bool, error) {
	return change.Restore(ctx, c, ch)
}

// AfterBoot is the change: the line is still there.
func (Contexts) AfterBoot(c change.Change) change.Change { return c }

// Ports is the actuator of KindPort. "T from O" writes T where the loaded policy has O for these ports, alone or in a
// range, which then lose it; as it is read, that is "T". Without O it writes only ports that are nobody's.
type Ports struct{ Host }

// Read gives the type that the port has locally.
func (p Ports) Read(_ context.Context, addr string) (string, error) {
	m := portAddr().FindStringSubmatch(addr)
	if m == nil {
		return "", checkPort(addr)
	}
	lines, err := p.local("ports.local")
	if err != nil {
		return "", err
	}
	for _, words := range lines { // "portcon udp 4567 - 4568 system_u:object_r:mysqld_port_t:s0"
		last := len(words) - 1
		if last < 3 || words[1] != m[1] || strings.Join(words[2:last], "") != ports(m) {
			continue
		}
		kind, plain := plainType(words[last])
		if !plain {
			return "", foreign("context of port "+addr, words[last])
		}
		return kind, nil
	}
	return "", nil
}

// ports are those of an address as semanage has them.
func ports(m []string) string {
	if m[3] == "" || m[3] == m[2] {
		return m[2]
	}
	return m[2] + "-" + m[3]
}

// Write adds the port, changes it or takes it away ("").
func (p Ports) Write(ctx context.Context, addr, value string) error {
	if _, err := p.idle(ctx); err != nil {
		return err
	}
	now, err := p.Read(ctx, addr)
	if err != nil {
		return err
	}
	m := portAddr().FindStringSubmatch(addr)
	kind, from, _ := strings.Cut(value, " from ")
	switch {
	case kind == now:
		return nil
	case value == "":
		return p.run(ctx, "semanage", "port", "-d", "-p", m[1], ports(m))
	case !portType.MatchString(value):
		return fmt.Errorf("%q is not the name of a type", value)
	}
	how := addOrModify(now)
	if now == "" {
		defined, err := p.owner(m, kind, from)
		if err != nil {
			return err
		}
		if defined {
			how = "-m"
		}
	}
	return p.run(ctx, "semanage", "port", how, "-t", kind, "-p", m[1], ports(m))
}

// owner refuses ports that are somebody's in the loaded policy, but for the type from. Defined says that the policy has
// exactly these ports.
func (p Ports) owner(m []string, kind, from string) (defined bool, err error) {
	data, err := selinux.Host{Root: p.Root}.Policy()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // the kernel has loaded none
	}
	var loaded *policydb.Policy
	if err == nil {
		loaded, err = policydb.Decode(data)
	}
	if err != nil {
		return false, fmt.Errorf("read the loaded policy: %w", err)
	}
	low, _ := strconv.Atoi(m[2])
	high := low
	if m[3] != "" {
		high, _ = strconv.Atoi(m[3])
	}
	for port := low; port <= high; port++ {
		now, known := loaded.PortType(m[1], port)
		switch {
		case !known:
			continue
		case now.Low == low && now.High == high:
			defined = true
		}
		if !now.General() && now.Type != kind && now.Type != from {
			return false, fmt.Errorf("%s/%d is %s's: `bulkhead selinux apply --take-port %s/%d` takes it from the "+
				"servers of that kind", m[1], port, now.Type, m[1], port)
		}
	}
	return defined, nil
}

// Same compares types.
func (Ports) Same(_, want, got string) bool {
	want, _, _ = strings.Cut(want, " from ")
	got, _, _ = strings.Cut(got, " from ")
	return want == got
}

// Undo gives the port the local type back that it had, or takes ours away.
func (p Ports) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, p, c)
}

// AfterBoot is the change: the port is still there.
func (Ports) AfterBoot(c change.Change) change.Change { return c }
