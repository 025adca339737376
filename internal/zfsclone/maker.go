package zfsclone

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"bulkhead/internal/linux/mountinfo"
	"bulkhead/internal/linux/zfs"
	"bulkhead/internal/zfslayout"
)

// Maker makes and removes copies. It is at one copy at a time.
type Maker struct {
	Records
	ZFS zfs.Tools
	// Server is the one of a copy.
	Server func(*Plan) zfslayout.Server
	// Group makes the group of a copy that has a class, or removes it. Done twice it changes nothing.
	Group   func(ctx context.Context, p *Plan, there bool) error
	Holders func(ctx context.Context, dirs []string) ([]zfslayout.Holder, error)
	Mounts  func() (mountinfo.Mounts, error)
	// Alone does something while nobody else of this program makes or removes snapshots; nil just does it.
	Alone func(ctx context.Context, do func() error) error
	// Patience is for how long what is busy is tried again; 0 is 10 s.
	Patience time.Duration
	Say      func(text string) // what is done next; nil for nothing
	// step is told of each step that was done: for tests, which crash there.
	step func(what string)
}

// eachStep is Maker.step of a binary that is built for root tests; nil elsewhere.
var eachStep func(what string)

func (m *Maker) at(what string) {
	if m.step != nil {
		m.step(what)
	} else if eachStep != nil {
		eachStep(what)
	}
}

func (m *Maker) say(format string, args ...any) {
	if m.Say != nil {
		m.Say(fmt.Sprintf(format, args...))
	}
}

// gone removes a file or an empty directory.
func gone(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
