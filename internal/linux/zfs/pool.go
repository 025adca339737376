package zfs

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Pool is an imported pool.
type Pool struct {
	Name  string `json:"name"`
	State string `json:"state"` // ONLINE, DEGRADED, FAULTED, SUSPENDED, …
	// Size, Used and Free are in bytes, before parity of raidz.
	Size int64 `json:"size"`
	Used int64 `json:"used"`
	Free int64 `json:"free"`
	// Fragmentation is that of the free space, in per cent; -1 where the pool does not tell.
	Fragmentation int64 `json:"fragmentation"`
	// Ashift is the power of two of the smallest write that the pool was told; 0 where each vdev found its own.
	Ashift int64  `json:"ashift"`
	Vdevs  []Vdev `json:"vdevs"`
}

// Role is what a vdev is for.
type Role string

// The roles of vdevs; others are as zpool(8) heads them.
const (
	RoleData  Role = "data"
	RoleLog   Role = "logs"
	RoleCache Role = "cache"
	RoleSpare Role = "spares"
)

// Vdev is one vdev at the top of a pool.
type Vdev struct {
	Name  string   `json:"name"` // mirror-0, raidz1-0, or the path of a single disk or file
	Role  Role     `json:"role"`
	State string   `json:"state"`
	Parts []string `json:"parts,omitempty"` // paths of the disks and files that it is made of; none of a single one
}

// Redundant says whether the vdev outlives the loss of one part.
func (v Vdev) Redundant() bool {
	for _, kind := range []string{"mirror", "raidz", "draid"} {
		if strings.HasPrefix(v.Name, kind) {
			return len(v.Parts) > 1
		}
	}
	return false
}

// Paths are those of its disks and files.
func (v Vdev) Paths() []string {
	if len(v.Parts) > 0 {
		return v.Parts
	}
	return []string{v.Name}
}

// Files are the parts that are no devices.
func (v Vdev) Files() []string {
	var files []string
	for _, p := range v.Paths() {
		if path.IsAbs(p) && (!strings.HasPrefix(p, "/dev/") || strings.HasPrefix(p, "/dev/shm/")) {
			files = append(files, p)
		}
	}
	return files
}

var poolColumns = []string{"name", "health", "size", "allocated", "free", "fragmentation", "ashift"}

// Pools are the imported pools, with their vdevs.
func (t Tools) Pools(ctx context.Context) ([]Pool, error) {
	out, err := t.Run(ctx, t.Zpool, "list", "-H", "-p", "-o", strings.Join(poolColumns, ","))
	if err != nil {
		return nil, err
	}
	pools := []Pool{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) != len(poolColumns) {
			return nil, fmt.Errorf("read the pools: %q has %d columns and not %d", line, len(f), len(poolColumns))
		}
		p := Pool{Name: f[0], State: f[1], Size: number(f[2]), Used: number(f[3]), Free: number(f[4]),
			Fragmentation: number(f[5]), Ashift: max(number(f[6]), 0)}
		status, err := t.Run(ctx, t.Zpool, "status", "-P", p.Name)
		if err != nil {
			return nil, err
		}
		p.Vdevs = vdevsOf(p.Name, status)
		pools = append(pools, p)
	}
	return pools, nil
}

// HasPool says whether a pool is imported.
func (t Tools) HasPool(ctx context.Context, name string) (bool, error) {
	out, err := t.Run(ctx, t.Zpool, "list", "-H", "-o", "name")
	return slices.Contains(strings.Split(out, "\n"), name), err
}

// number reads a number of -p, with the sign that some versions add; -1 where there is none.
func number(text string) int64 {
	n, err := strconv.ParseInt(strings.TrimRight(text, "%x"), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// vdevsOf reads the configuration in the output of zpool status -P. Each level is two blanks deeper than the one above.
func vdevsOf(pool, status string) []Vdev {
	vdevs := []Vdev{}
	role, inside := Role(""), false
	for line := range strings.Lines(status) {
		f := strings.Fields(line)
		switch {
		case !inside:
			inside = len(f) > 1 && f[0] == "NAME" && f[1] == "STATE"
			continue
		case len(f) > 0 && f[0] == "errors:":
			return vdevs
		case len(f) == 0:
			continue
		}
		row := strings.TrimPrefix(line, "\t")
		depth := (len(row) - len(strings.TrimLeft(row, " "))) / 2
		state := ""
		if len(f) > 1 {
			state = f[1]
		}
		switch {
		case depth == 0 && f[0] == pool && role == "":
			role = RoleData
		case depth == 0:
			role = Role(f[0])
		case depth == 1:
			vdevs = append(vdevs, Vdev{Name: f[0], Role: role, State: state})
		case len(vdevs) > 0 && path.IsAbs(f[0]):
			v := &vdevs[len(vdevs)-1]
			v.Parts = append(v.Parts, f[0])
		}
	}
	return vdevs
}
