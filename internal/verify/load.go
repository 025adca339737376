package verify

import (
	"context"
	"fmt"
	"sync"
	"time"

	"bulkhead/internal/cgroup"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/probe"
)

// Load is a process that does as it is ordered: a probe.Load.
type Load interface {
	// Do has an order done that takes so long. The error is probe.ErrEnded when the process was killed over it.
	Do(ctx context.Context, o probe.Order, takes time.Duration) (probe.Answer, error)
	// WriteBack writes the dirty pages of a file that the load has open to the disk.
	WriteBack(file int) error
	Close()
}

// Start starts a load. With a group, the load enters it by itself before it says that it is there.
type Start func(ctx context.Context, group string) (Load, procfs.ID, error)

// launcher starts loads in their places.
type launcher struct {
	host  *host.Host
	tree  *cgroup.Tree
	start Start
}

// in starts a load and moves it into its place.
func (l launcher) in(ctx context.Context, pl *place) (Load, error) {
	load, id, err := l.start(ctx, pl.enter)
	if err != nil {
		return nil, err
	}
	// Where memory is short it goes first. A kernel that does not let us say so is no reason not to measure.
	_ = l.host.Proc.WriteOOMScoreAdj(id, 1000)
	if err := l.tree.MoveAll(id, nil, nil, pl.into...); err != nil {
		load.Close()
		return nil, fmt.Errorf("put the load into the group: %w", err)
	}
	return load, nil
}

// with starts a load in a place, has it do something, ends it and removes the place. An error of making the place comes
// back as it is.
func (l launcher) with(ctx context.Context, pl *place, err error, do func(Load) error) error {
	if err != nil {
		return err
	}
	defer pl.close()
	load, err := l.in(ctx, pl)
	if err != nil {
		return err
	}
	defer load.Close()
	return do(load)
}

// together starts a load in each place and has them carry out their orders at the same time.
func (l launcher) together(ctx context.Context, places []*place, orders []probe.Order, takes time.Duration) (
	[]probe.Answer, error,
) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var loads []Load
	defer func() {
		for _, load := range loads {
			load.Close()
		}
	}()
	for _, pl := range places {
		load, err := l.in(ctx, pl)
		if err != nil {
			return nil, err
		}
		loads = append(loads, load)
	}
	answers := make([]probe.Answer, len(loads))
	var done sync.WaitGroup
	for i, load := range loads {
		done.Go(func() {
			var err error
			if answers[i], err = load.Do(ctx, orders[i], takes); err != nil {
				stop(err) // the others have nothing to compete with
			}
		})
	}
	done.Wait()
	return answers, context.Cause(ctx)
}
