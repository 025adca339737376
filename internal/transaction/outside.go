package transaction

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"bulkhead/internal/atomicfile"
	"bulkhead/internal/change"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/tunable/outside"
	"bulkhead/internal/systemd"
	"bulkhead/internal/systemd/unitfiles"
)

// OutsideVerb is the verb with which this program writes a value for the agent, outside of its sandbox: WriteOutside.
const OutsideVerb = "outside"

// outsideUnit is the service in which it runs. There is one at a time, under the lock of the state directory.
const outsideUnit = "bulkhead-outside.service"

// order is what it is told. A value that is too long for an argument (MAX_ARG_STRLEN of execve(2) is 128 KiB) is in a
// file of the state directory.
type order struct {
	change.Target
	Value string `json:"value,omitempty"`
	File  string `json:"file,omitempty"`
}

const (
	longest   = 32 << 10 // bytes of a value in an argument
	valueFile = "outside.value"
)

// sandbox has values written by a service of its own, which systemd starts outside of the agent's sandbox.
type sandbox struct {
	c     *Controller
	facts *host.Facts
}

// Write has a value written, and waits for it. In no sandbox of systemd's it does nothing.
func (s sandbox) Write(ctx context.Context, t change.Target, value string) (bool, error) {
	if !s.c.IsHere() || !s.facts.Systemd || !outside.Sandboxed(s.c.Host.Root) {
		return false, nil
	}
	m, err := s.c.Manager(ctx, s.facts)
	if err == nil && m == nil {
		err = unitfiles.ErrMute
	}
	if err != nil {
		return false, err
	}
	text, err := s.c.orderOf(t, value)
	defer os.Remove(filepath.Join(s.c.Store.Dir(), valueFile))
	if err != nil {
		return false, fmt.Errorf("write %s: %w", t, err)
	}
	err = m.StartTransient(ctx, systemd.Transient{
		Name: outsideUnit, Description: "bulkhead, which writes what its agent's sandbox forbids",
		// systemd reads no "$" and no "%" in what it is told so.
		Exec:       []string{s.c.exe, OutsideVerb, text},
		Properties: []systemd.Property{{Name: "Type", Value: "oneshot"}},
	})
	if err != nil { // a failed one would keep the name
		err = errors.Join(fmt.Errorf("write %s; `journalctl -u bulkhead-outside` says why: %w", t, err),
			m.ResetFailed(ctx, outsideUnit))
	}
	return true, err
}

// orderOf is an order as an argument. The file with a value that is too long for one is to be removed.
func (c *Controller) orderOf(t change.Target, value string) (string, error) {
	o := order{Target: t, Value: value}
	if len(value) > longest {
		o.Value, o.File = "", filepath.Join(c.Store.Dir(), valueFile)
		if _, err := atomicfile.Write(atomicfile.OS{}, o.File, []byte(value), 0o600); err != nil {
			return "", err
		}
	}
	text, err := json.Marshal(o)
	return base64.RawURLEncoding.EncodeToString(text), err
}

// Settle stops who still writes for an agent that is gone.
func (s sandbox) Settle(ctx context.Context) error {
	if !s.c.IsHere() || !s.facts.Systemd {
		return nil
	}
	m, err := s.c.Manager(ctx, s.facts)
	if err != nil || m == nil {
		return err
	}
	if err := m.Stop(ctx, outsideUnit); !errors.Is(err, systemd.ErrNoUnit) {
		return err
	}
	return nil
}

// WriteOutside does what an agent in a sandbox asked for. Whoever asked has the lock.
func (c *Controller) WriteOutside(ctx context.Context, text string) error {
	var o order
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err == nil {
		err = json.Unmarshal(data, &o)
	}
	if err != nil {
		return fmt.Errorf("read what is to be written: %w", err)
	}
	if o.File != "" {
		if data, err = os.ReadFile(o.File); err != nil {
			return fmt.Errorf("read what is to be written: %w", err)
		}
		o.Value = string(data)
	}
	return c.tunable().WriteHere(ctx, o.Target, o.Value)
}
