package advice

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"bulkhead/internal/advise/gather/zfsdata"
	"bulkhead/internal/cli/render"
	"bulkhead/internal/policy"
)

// printUses prints what log and cache devices do, or would.
func printUses(out io.Writer, l *zfsdata.Layout) {
	rows := [][]string{{"POOL", "SYNCED WRITES", "EACH ABOUT", "RECORDS TO DISKS", "TO LOG DEVICES"}}
	for _, name := range slices.Sorted(maps.Keys(l.Uses)) {
		u := l.Uses[name]
		row := []string{name, "not known", "not known", "-", "-"}
		if s := u.Synced; s != nil {
			row[1] = fmt.Sprintf("%.1f/s over %s", s.PerSecond, s.Since.Round(time.Second))
			row[3], row[4] = strconv.FormatInt(s.Disks, 10), strconv.FormatInt(s.Log, 10)
		}
		if u.Wait > 0 {
			row[2] = u.Wait.Round(time.Microsecond).String()
		}
		rows = append(rows, row)
	}
	if len(rows) > 1 {
		render.Table(out, rows)
		render.Println(out, "EACH: in the queue of synced writes and on the disks, on average. A log device (SLOG) "+
			"saves a commit at most that.")
		render.Println(out)
	}
	c := l.Lookups
	if c == nil {
		return
	}
	percent := func(part, all int64) string {
		if all == 0 {
			return "none"
		}
		return fmt.Sprintf("%.1f %%", 100*float64(part)/float64(all))
	}
	render.Printf(out, "Lookups that the cache did not answer: %s. Of these had fallen out a short time before: %s, "+
		"which a larger\ncache would have answered, and a cache device (L2ARC) at most.\n", percent(c.Misses,
		c.Hits+c.Misses), percent(c.Ghosts, c.Misses))
	if c.DeviceBytes > 0 {
		render.Printf(out, "Cache devices hold %s, and had of what was looked for: %s.\n",
			policy.Bytes(c.DeviceBytes).Human(), percent(c.DeviceHits, c.DeviceHits+c.DeviceMisses))
	}
	render.Println(out)
}
