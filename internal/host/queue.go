package host

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
)

// The files of a device's queue that decide whether its requests can be weighed.
const (
	QueueScheduler = "scheduler"
	QueueWriteBack = "wbt_lat_usec"
)

// QueuePath is the path of a file of a disk's queue, for people.
func QueuePath(number, name string) string { return path.Join(blockDevices, number, "queue", name) }

// queueFile is the path of a file of a whole disk's queue.
func queueFile(number, name string) (string, error) {
	if strings.Trim(number, "0123456789:") != "" || (name != QueueScheduler && name != QueueWriteBack) {
		return "", fmt.Errorf("queue of %q: %q is not one of its files", number, name)
	}
	return QueuePath(number, name), nil
}

// Queue reads a file of a disk's queue: of the schedulers the active one.
func (h BlockFS) Queue(number, name string) (string, error) {
	file, err := queueFile(number, name)
	if err != nil {
		return "", err
	}
	text, err := h.root.readText(file)
	if name == QueueScheduler {
		text = activeScheduler(text)
	}
	return text, err
}

// SetQueue writes a file of a disk's queue.
func (h BlockFS) SetQueue(number, name, value string) error {
	file, err := queueFile(number, name)
	if err != nil {
		return err
	}
	if !h.root.Live() {
		return errors.New("a captured host cannot be changed")
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// BFQ is the name of the scheduler that weighs groups (4.12), CFQ of the one before it (gone with 5.0).
const (
	BFQ = "bfq"
	CFQ = "cfq"
)
