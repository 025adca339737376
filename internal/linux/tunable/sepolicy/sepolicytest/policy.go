// Package sepolicytest is a store of SELinux's policy for tests, with what semanage(8) and semodule(8) do to its files.
// It is for one goroutine.
package sepolicytest

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Policy is a store below a directory, and the programs that change it.
type Policy struct {
	Called []string          // programs, as they were called
	Labels map[uint64]string // by inode
	t      *testing.T
	dir    string
}

// Active is the directory of the store.
const Active = "var/lib/selinux/default/active/"

// New makes one below a directory, with three booleans that are off.
func New(t *testing.T, dir string) *Policy {
	t.Helper()
	p := &Policy{t: t, dir: dir, Labels: map[uint64]string{}}
	p.Put("etc/selinux/config", "SELINUX=enforcing\nSELINUXTYPE=default\n")
	p.Put("usr/sbin/semanage", "")
	p.Put("usr/sbin/semodule", "")
	p.Put(Active+"commit_num", "1")
	p.Put("var/lib/selinux/default/semanage.trans.LOCK", "")
	p.Put("sys/fs/selinux/commit_pending_bools", "")
	for _, name := range []string{"mysql_connect_any", "other", "third"} {
		p.Put("sys/fs/selinux/booleans/"+name, "0 0")
	}
	return p
}

// Put writes a file below the directory.
func (p *Policy) Put(file, text string) {
	p.t.Helper()
	at := filepath.Join(p.dir, file)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o600)); err != nil {
		p.t.Fatal(err)
	}
}

// Load has the kernel have a policy: a file of it in hexadecimal, beside the caller.
func (p *Policy) Load(file string) {
	p.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		p.t.Fatal(err)
	}
	data, err := hex.DecodeString(strings.ReplaceAll(string(text), "\n", ""))
	if err != nil {
		p.t.Fatal(err)
	}
	p.Put("sys/fs/selinux/policy", string(data))
}

// Text is that of a file; one that is not there is empty.
func (p *Policy) Text(file string) string {
	text, _ := os.ReadFile(filepath.Join(p.dir, file))
	return string(text)
}

// Label is of what a descriptor is open on: var_t where nothing was set.
func (p *Policy) Label(fd int) (string, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	if label, has := p.Labels[st.Ino]; has {
		return label, nil
	}
	return "system_u:object_r:var_t:s0", nil
}

// SetLabel takes every label but one with no_such_t.
func (p *Policy) SetLabel(fd int, label string) error {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	if strings.Contains(label, "no_such_t") {
		return unix.EINVAL
	}
	p.Labels[st.Ino] = label
	return err
}

// Run does what semanage and semodule would do with the files of the store.
func (p *Policy) Run(_ context.Context, program string, args ...string) error {
	p.Called = append(p.Called, strings.Join(append([]string{filepath.Base(program)}, args...), " "))
	if filepath.Base(program) == "semodule" {
		return p.semodule(args)
	}
	return p.semanage(args)
}

func (p *Policy) semodule(args []string) error {
	if args[0] != "-X" || args[1] != "400" {
		return fmt.Errorf("semodule %q", args)
	}
	modules := filepath.Join(p.dir, Active, "modules/400")
	if args[2] == "-r" {
		return os.RemoveAll(filepath.Join(modules, args[3]))
	}
	text, err := os.ReadFile(args[3])
	if err != nil || strings.Contains(string(text), "no_such_t") {
		return errors.Join(err, errors.New("failed to resolve"))
	}
	name, _ := strings.CutSuffix(filepath.Base(args[3]), ".cil")
	p.Put(Active+"modules/400/"+name+"/cil", string(text))
	return nil
}

// semanage has each object in a line that begins with it.
func (p *Policy) semanage(args []string) error {
	file, key, line := "", args[len(args)-1], ""
	kind := ""
	if i := slices.Index(args, "-t"); i > 0 {
		kind = args[i+1]
	}
	if strings.Contains(kind, "no_such_t") {
		return errors.New("type is invalid")
	}
	switch args[0] {
	case "fcontext":
		file, line = "file_contexts.local", key+"    system_u:object_r:"+kind+":s0"
	case "port":
		key = "portcon " + args[slices.Index(args, "-p")+1] + " " + strings.Replace(key, "-", " - ", 1)
		file, line = "ports.local", key+" system_u:object_r:"+kind+":s0"
	case "boolean":
		file = "booleans.local"
		if args[1] == "-D" {
			p.Put(Active+file, "# auto-generated\n")
			return nil
		}
		digit := map[string]string{"--on": "1", "--off": "0"}[args[2]]
		line, key = key+"="+digit, key+"="
		p.Put("sys/fs/selinux/booleans/"+args[3], digit+" "+digit)
	}
	var kept []string
	had := false
	for _, old := range strings.Split(strings.TrimSuffix(p.Text(Active+file), "\n"), "\n") {
		switch is := strings.HasPrefix(old, key); {
		case is:
			had = true
		case old != "":
			kept = append(kept, old)
		}
	}
	switch {
	case args[1] == "-a" && had, args[1] == "-d" && !had:
		return fmt.Errorf("semanage %q: defined: %t", args, had)
	case args[1] != "-d":
		kept = append(kept, line)
	}
	p.Put(Active+file, strings.Join(kept, "\n")+"\n")
	return nil
}
