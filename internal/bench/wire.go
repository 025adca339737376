package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/peer"
	"bulkhead/internal/bench/process"
)

// iproute2 is what the wire is laid with.
var iproute2 = []process.Program{{Name: "ip", Package: "iproute2"}, {Name: "tc", Package: "iproute2"}}

// layWire makes the veth pair and gives both ends their addresses. It goes with its namespaces, so there is nothing to
// take back.
func (r *run) layWire(ctx context.Context) error {
	// The namespace has no name: the thread that is in it stands for it.
	far := strconv.Itoa(r.far.NamespaceThread)
	for _, c := range []struct {
		at   *process.Supervisor
		args []string
	}{
		{r.supervisor, []string{"link", "add", load.NearNIC, "type", "veth", "peer", "name", load.FarNIC, "netns",
			far}},
		{r.supervisor, []string{"address", "add", load.NearAddr + "/24", "dev", load.NearNIC}},
		{r.far, []string{"address", "add", load.FarAddr + "/24", "dev", load.FarNIC}},
		{r.supervisor, []string{"link", "set", "lo", "up"}},
		{r.far, []string{"link", "set", "lo", "up"}},
		{r.far, []string{"link", "set", load.FarNIC, "up"}},
		{r.supervisor, []string{"link", "set", load.NearNIC, "up"}},
	} {
		ip := &peer.Peer{Paths: r.paths, Supervisor: c.at}
		if _, err := ip.Do(ctx, "ip", c.args...); err != nil {
			return fmt.Errorf("lay the wire: %w", err)
		}
	}
	return nil
}

// apartMark is the file in a work directory that tells that the run had network namespaces of its own.
const apartMark = "apart"

func markApart(dir string) error {
	if err := os.WriteFile(filepath.Join(dir, apartMark), nil, 0o600); err != nil {
		return fmt.Errorf("mark the work directory: %w", err)
	}
	return nil
}

func markedApart(dir string) (bool, error) {
	_, err := os.Lstat(filepath.Join(dir, apartMark))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}
