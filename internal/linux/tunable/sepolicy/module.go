package sepolicy

import (
	"bytes"
	"compress/bzip2"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"bulkhead/internal/change"
)

// priority is that of modules of administrators; distributions have 100 and 200.
const priority = "400"

// Modules is the actuator of KindModule. The journal keeps the text of a module that is replaced.
type Modules struct{ Host }

// Read gives the text of the module on one line; "" is no module.
func (m Modules) Read(_ context.Context, name string) (string, error) {
	if !moduleName.MatchString(name) {
		return "", fmt.Errorf("%q is not the name of a module of bulkhead's", name)
	}
	dir, err := m.store()
	if err != nil {
		return "", err
	}
	file := dir + "/active/modules/" + priority + "/" + name + "/cil"
	text, err := m.Root.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err == nil && bytes.HasPrefix(text, []byte("BZh")) { // bzip-blocksize of semanage.conf(5)
		text, err = io.ReadAll(io.LimitReader(bzip2.NewReader(bytes.NewReader(text)), longest))
	}
	if err != nil {
		return "", fmt.Errorf("read %s: %w", file, err)
	}
	return strings.Join(strings.Fields(string(text)), " "), nil
}

const longest = 1 << 20 // bytes of a module

// Write installs the module, or removes it ("").
func (m Modules) Write(ctx context.Context, name, value string) error {
	if _, err := m.idle(ctx); err != nil {
		return err
	}
	now, err := m.Read(ctx, name)
	switch {
	case err != nil || now == value:
		return err
	case value == "":
		return m.run(ctx, "semodule", "-X", priority, "-r", name)
	}
	dir, err := os.MkdirTemp("", "bulkhead-module-") // semodule takes the name from the file's
	if err != nil {
		return fmt.Errorf("write the module %s: %w", name, err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, name+".cil")
	if err := os.WriteFile(file, []byte(value+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the module %s: %w", name, err)
	}
	return m.run(ctx, "semodule", "-X", priority, "-i", file)
}

// Same compares texts.
func (Modules) Same(_, want, got string) bool { return want == got }

// Undo gives the module back that was there, or removes ours.
func (m Modules) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, m, c)
}

// AfterBoot is the change: the module is still there.
func (Modules) AfterBoot(c change.Change) change.Change { return c }
