package usage

import (
	"context"
	"errors"
)

var errInterrupted = errors.New("interrupted; nothing was changed")

// Interruptible does what changes nothing, and leaves it to itself when ctx ends: the program ends with the verb.
func Interruptible(ctx context.Context, do func() error) error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return errInterrupted
	}
}
