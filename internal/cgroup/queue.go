package cgroup

import (
	"errors"
	"io/fs"
	"strings"

	"bulkhead/internal/host"
)

// Files of a disk's queue that a Tree reads and writes as if they were files with a line for each device in the top directory of a hierarchy:
// what weighs the requests of groups hangs on them, and its originals belong into the same journal.
const (
	queuePrefix    = "queue."
	QueueScheduler = queuePrefix + host.QueueScheduler
	QueueWriteBack = queuePrefix + host.QueueWriteBack
)

// queues is what a Mount has that reaches the queues of disks.
type queues interface {
	Queue(number, name string) (string, error)
	SetQueue(number, name, value string) error
}

// isQueue says whether a file is one of a disk's queue.
func isQueue(f File) bool {
	return (f.Name == QueueScheduler || f.Name == QueueWriteBack) && f.Dir.Path == "/" && f.Key != ""
}

var errNoQueue = errors.New("the queues of disks cannot be reached")

// queue does something with a file of a disk's queue.
func (t *Tree) queue(op string, f File, do func(queues, string) error) error {
	m, err := t.mount(op, f.Dir)
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(f.Name, queuePrefix)
	at := host.QueuePath(f.Key, name)
	q, ok := m.(queues)
	if !ok {
		return &Error{Op: op, Path: at, Kind: ErrInvalid, Cause: errNoQueue}
	}
	if err := do(q, name); err != nil {
		kind := ErrInvalid
		if errors.Is(err, fs.ErrNotExist) {
			kind = ErrNoKnob // the disk is gone
		}
		return &Error{Op: op, Path: at, Kind: kind, Cause: bare(err)}
	}
	return nil
}

func (t *Tree) readQueue(f File) (text string, err error) {
	err = t.queue("read", f, func(q queues, name string) (err error) {
		text, err = q.Queue(f.Key, name)
		return err
	})
	return text, err
}

func (t *Tree) writeQueue(f File, value string) error {
	return t.queue("write", f, func(q queues, name string) error { return q.SetQueue(f.Key, name, value) })
}

func (m *rootMount) Queue(number, name string) (string, error) {
	if m.fixture {
		return "", errNoQueue
	}
	return host.New("/").Block.Queue(number, name)
}

func (m *rootMount) SetQueue(number, name, value string) error {
	if m.fixture {
		return errNoQueue
	}
	return host.New("/").Block.SetQueue(number, name, value)
}
