package blockdev

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"bulkhead/internal/change"
)

// The files of a device's queue that decide whether its requests can be weighed.
const (
	QueueScheduler = "scheduler"
	QueueWriteBack = "wbt_lat_usec"
)

// KindQueue is the kind of an attribute of a disk's request queue. Its address is "8:16/scheduler".
const KindQueue change.Kind = "disk queue"

// QueueTarget is an attribute of the queue of a whole disk, by the disk's number.
func QueueTarget(number, name string) change.Target {
	return change.Target{Kind: KindQueue, Addr: number + "/" + name}
}

// Queues reads and writes the request queues of disks below /sys/dev/block.
type Queues struct{ Block FS }

// QueuePath is the path of a file of a disk's queue, for people.
func QueuePath(number, name string) string { return path.Join(blockDevices, number, "queue", name) }

// queueFile is the path of an attribute by its address.
func queueFile(addr string) (file, name string, err error) {
	number, name, _ := strings.Cut(addr, "/")
	if strings.Trim(number, "0123456789:") != "" || (name != QueueScheduler && name != QueueWriteBack) {
		return "", "", fmt.Errorf("queue of %q: %q is not one of its files", number, name)
	}
	return QueuePath(number, name), name, nil
}

// Scheduler reads the active scheduler of a disk, by the disk's number.
func (q Queues) Scheduler(number string) (string, error) {
	return q.read(number + "/" + QueueScheduler)
}

// Read reads an attribute: of the schedulers the active one. A disk that has gone is change.ErrGone.
func (q Queues) Read(_ context.Context, addr string) (string, error) { return q.read(addr) }

func (q Queues) read(addr string) (string, error) {
	file, name, err := queueFile(addr)
	if err != nil {
		return "", err
	}
	text, err := q.Block.root.ReadText(file)
	if err != nil {
		return "", queueError("read", file, err)
	}
	if name == QueueScheduler {
		text = activeScheduler(text)
	}
	return strings.TrimSpace(text), nil
}

// Write writes an attribute.
func (q Queues) Write(_ context.Context, addr, value string) error {
	file, _, err := queueFile(addr)
	if err != nil {
		return err
	}
	if !q.Block.root.Live() {
		return change.ErrCaptured
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return queueError("write", file, err)
	}
	return nil
}

// Same compares single words.
func (Queues) Same(_, want, got string) bool {
	return strings.TrimSpace(want) == strings.TrimSpace(got)
}

// Undo gives an attribute its old value back.
func (q Queues) Undo(ctx context.Context, c change.Change) (bool, error) {
	return change.Restore(ctx, q, c)
}

var errDiskGone = change.Gone("the disk is gone")

func queueError(verb, file string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		err = errDiskGone
	}
	return fmt.Errorf("%s %q: %w", verb, file, err)
}

// BFQ is the name of the scheduler that weighs groups (4.12), CFQ of the one before it (gone with 5.0).
const (
	BFQ = "bfq"
	CFQ = "cfq"
)
