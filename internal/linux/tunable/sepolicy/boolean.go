package sepolicy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"bulkhead/internal/change"
)

const on, off = "on", "off"

// Booleans is the actuator of KindBoolean: what the store has for a boolean beside the policy's default.
type Booleans struct{ Host }

// all are the booleans of the store.
func (b Booleans) all() (values map[string]string, err error) {
	lines, err := b.local("booleans.local")
	if err != nil {
		return nil, err
	}
	values = map[string]string{}
	for _, words := range lines {
		name, value, is := strings.Cut(strings.Join(words, ""), "=")
		if !is {
			continue
		}
		values[name] = off
		if value == "1" || strings.EqualFold(value, "true") || strings.EqualFold(value, on) {
			values[name] = on
		}
	}
	return values, nil
}

// Read gives "on", "off" or "", which is the policy's default.
func (b Booleans) Read(_ context.Context, name string) (string, error) {
	values, err := b.all()
	return values[name], err
}

// Write sets the boolean of the store, or takes it out. semanage can only take out all of them: where there are others,
// the boolean stays in the store as "off". It sets the kernel's boolean, too, which then gets back what it was.
func (b Booleans) Write(ctx context.Context, name, value string) error {
	if _, err := b.idle(ctx); err != nil {
		return err
	}
	values, err := b.all()
	args := []string{"boolean", "-m", "--" + value, name}
	switch {
	case err != nil || values[name] == value:
		return err
	case value == "" && len(values) == 1:
		args = []string{"boolean", "-D"}
	case value == "" && values[name] == off:
		return nil
	case value == "":
		args[2] = "--" + off
	case value != on && value != off:
		return fmt.Errorf("a boolean is on or off, and not %q", value)
	}
	return b.keeping(name, func() error { return b.run(ctx, "semanage", args...) })
}

// keeping does something, and gives a boolean of the kernel back what it was before.
func (h Host) keeping(name string, do func() error) error {
	held, err := h.inForce(name)
	if err != nil && !errors.Is(err, change.ErrGone) {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	now, err := h.inForce(name)
	if err == nil && now != held {
		err = h.force(name, held)
	}
	if errors.Is(err, change.ErrGone) {
		return nil
	}
	return err
}

// Same compares values. Nothing of its own is the default of the policy, and "off" is that of a boolean that bulkhead
// has switched on.
func (Booleans) Same(_, want, got string) bool { return want == got || want == "" && got == off }

// Undo gives the store what it had.
func (b Booleans) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, b, c)
}

// AfterBoot is the change: it is still in the store.
func (Booleans) AfterBoot(c change.Change) change.Change { return c }

// Switches is the actuator of KindSwitch. A kernel that has loaded no policy has none.
type Switches struct{ Host }

const kernel = "/sys/fs/selinux"

// Read gives "on" or "off".
func (s Switches) Read(_ context.Context, name string) (string, error) { return s.inForce(name) }

func (h Host) inForce(name string) (string, error) {
	if !booleanName.MatchString(name) {
		return "", fmt.Errorf("%q is not the name of a boolean", name)
	}
	text, err := h.Root.ReadText(kernel + "/booleans/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", change.Gone("the kernel has no boolean " + name)
	}
	if err != nil {
		return "", fmt.Errorf("read the boolean %s: %w", name, err)
	}
	if strings.HasPrefix(text, "1") { // "1 1": now, and what is pending
		return on, nil
	}
	return off, nil
}

// Write sets the boolean of the kernel, until the next boot.
func (s Switches) Write(_ context.Context, name, value string) error {
	switch {
	case value != on && value != off:
		return fmt.Errorf("a boolean is on or off, and not %q", value)
	case s.Dir == "":
		return change.ErrCaptured
	}
	if _, err := s.inForce(name); err != nil {
		return err
	}
	return s.force(name, value)
}

func (h Host) force(name, value string) error {
	digit := map[string]string{on: "1", off: "0"}[value]
	for _, w := range [][2]string{{"/booleans/" + name, digit}, {"/commit_pending_bools", "1"}} {
		if err := h.write(w[0], w[1]); err != nil {
			return fmt.Errorf("set the boolean %s in the kernel: %w", name, err)
		}
	}
	return nil
}

// write writes a file of the kernel's.
func (h Host) write(file, text string) error {
	f, err := os.OpenFile(filepath.Join(h.Dir, kernel+file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Forget has the kernel forget which accesses it has decided on: in permissive mode it logs each once for as long as it
// remembers it. It commits the booleans as they are (security_set_bools of the kernel resets the AVC); where somebody
// is about to change some it does nothing, and says so.
func (h Host) Forget() error {
	if h.Dir == "" {
		return change.ErrCaptured
	}
	names, err := h.Root.ReadDir(kernel + "/booleans")
	if err != nil {
		return fmt.Errorf("read the booleans of the kernel: %w", err)
	}
	for _, name := range names {
		text, err := h.Root.ReadText(kernel + "/booleans/" + name)
		if err != nil {
			return fmt.Errorf("read the boolean %s: %w", name, err)
		}
		if now, pending, _ := strings.Cut(text, " "); now != pending {
			return fmt.Errorf("somebody is about to change the boolean %s", name)
		}
	}
	return h.write("/commit_pending_bools", "1")
}

// Same compares values.
func (Switches) Same(_, want, got string) bool { return want == got }

// Undo gives the kernel what it had.
func (s Switches) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, s, c)
}

// AfterBoot is the change: the store that came with it may have set the boolean again.
func (Switches) AfterBoot(c change.Change) change.Change { return c }
