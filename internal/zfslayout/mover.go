package zfslayout

import (
	"context"
	"fmt"

	"bulkhead/internal/linux/zfs"
)

// Server is the server that is moved.
type Server interface {
	Running(ctx context.Context) (bool, error)
	// Stop returns when it has ended.
	Stop(ctx context.Context) error
	Start(ctx context.Context) error
	// Answers returns when it answers, or with the reason why it does not.
	Answers(ctx context.Context) error
}

// Mover moves instances. It does one move at a time.
type Mover struct {
	Records
	ZFS    zfs.Tools
	Server Server
	// Holders names the processes that have files below directories open.
	Holders    func(ctx context.Context, dirs []string) ([]Holder, error)
	MountTable MountTable
	Say        func(text string) // what is done next; nil for nothing
	Warn       func(text string) // what a person has to know; nil for nothing
	// step is told of each step that was done: for tests, which crash there.
	step func(what string)
	free func(dir string) (int64, error) // treecopy.Free, for tests
}

func (m *Mover) say(format string, args ...any) {
	if m.Say != nil {
		m.Say(fmt.Sprintf(format, args...))
	}
}

func (m *Mover) warn(format string, args ...any) {
	if m.Warn != nil {
		m.Warn(fmt.Sprintf(format, args...))
	}
}

// eachStep is Mover.step of a binary that is built for root tests; nil elsewhere.
var eachStep func(what string)

func (m *Mover) at(what string) {
	if m.step != nil {
		m.step(what)
	} else if eachStep != nil {
		eachStep(what)
	}
}
