package tc

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

// A list during which something changed is asked for again; one that never comes whole is an error.
func TestWhole(t *testing.T) {
	other := errors.New("other")
	for _, c := range []struct {
		fails int
		err   error
		want  error
	}{
		{0, nil, nil}, {2, netlink.ErrDumpInterrupted, nil}, {1, other, other},
		{dumpTries, netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted},
	} {
		calls := 0
		all, err := whole(func() ([]int, error) {
			if calls++; calls <= c.fails {
				return []int{1}, c.err
			}
			return []int{1, 2}, nil
		})
		if !errors.Is(err, c.want) || err == nil && !slices.Equal(all, []int{1, 2}) {
			t.Errorf("%+v: %v, %v", c, all, err)
		}
	}
}
