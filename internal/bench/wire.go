package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
)

// The wire: a veth pair between two network namespaces of the run. The near end is what policies and peers govern; all that the run
// starts is there, bulkhead too, but the far ends of loads. Nothing leads from either namespace to the machine's interfaces.
const (
	nearNIC, farNIC   = "bhbench0", "bhbench1"
	nearAddr, farAddr = "10.79.0.1", "10.79.0.2"
	// firstPort is that of the first load; the namespaces are the run's own, so nobody else listens there.
	firstPort = 5201
)

// flowIn is a load that sends from the far end to the near one.
const flowIn = "in"

// iproute2 is what the wire is laid with.
var iproute2 = []program{{name: "ip", pkg: "iproute2"}, {name: "tc", pkg: "iproute2"}}

// layWire makes the veth pair and gives both ends their addresses. It goes with its namespaces, so there is nothing to take back.
func (r *run) layWire(ctx context.Context) error {
	// The namespace has no name: the thread that is in it stands for it.
	far := strconv.Itoa(r.far.apart)
	for _, c := range []struct {
		at   *nursery
		args []string
	}{
		{r.nursery, []string{"link", "add", nearNIC, "type", "veth", "peer", "name", farNIC, "netns", far}},
		{r.nursery, []string{"address", "add", nearAddr + "/24", "dev", nearNIC}},
		{r.far, []string{"address", "add", farAddr + "/24", "dev", farNIC}},
		{r.nursery, []string{"link", "set", "lo", "up"}},
		{r.far, []string{"link", "set", "lo", "up"}},
		{r.far, []string{"link", "set", farNIC, "up"}},
		{r.nursery, []string{"link", "set", nearNIC, "up"}},
	} {
		ip := &peer{paths: r.paths, nursery: c.at}
		if _, err := ip.do(ctx, "ip", c.args...); err != nil {
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

// listener is the address at which the end of a load listens that its client asks.
func (d *driver) listener() (addr, port string) {
	addr = farAddr
	if d.Flow == flowIn {
		addr = nearAddr
	}
	return addr, strconv.Itoa(d.port)
}
