package matrix

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"bulkhead/internal/bench/load"
	"bulkhead/internal/bench/pagesize"
	"bulkhead/internal/bench/process"
	"bulkhead/internal/scenario"
)

// redis has its data filled in at each start, and saves it (BGSAVE, fork(2)) again and again while the load writes. The
// keys that the load writes lie between others, one of every spread, so that few of the usual pages are written to and
// each of the huge ones.
type redis struct {
	client *goredis.Client
	saved  string  // the file that it saves into
	copied float64 // most bytes that were copied while it saved
	saving bool    // it was seen to save while the load ran
}

// Data of a Redis: values of so many bytes, and of every so many keys one that the load writes.
const (
	valueBytes = 1024
	spread     = 64
)

func (r *redis) fill(ctx context.Context, s *subject, size scenario.Point, of load.Driver) (*load.Driver, error) {
	of.Rows = max(s.mib(size)<<20/valueBytes/spread, 1)
	of.Options = slices.Concat(of.Options, []string{"-d", strconv.Itoa(valueBytes)})
	if err := r.open(ctx, s, of.Rows); err != nil {
		return nil, err
	}
	defer r.close()
	const warm = 2 * time.Second // says how many requests are reported together
	_, err := of.Run(ctx, warm, nil, nil, nil)
	return &of, err
}

// open fills the server that was started, keys of the load and others.
func (r *redis) open(ctx context.Context, s *subject, keys int) (err error) {
	if r.client, err = s.database.Redis(); err != nil {
		return err
	}
	r.saved = filepath.Join(s.database.DataDir, "dump.rdb")
	if err := r.client.FlushAll(ctx).Err(); err != nil {
		return errors.Join(err, r.close())
	}
	const batch = 256 // a script is not interrupted
	script := `for i = tonumber(ARGV[1]), tonumber(ARGV[2]) do
		redis.call('SET', string.format('key:%012d', i), string.rep('x', ARGV[3]))
		for j = 2, tonumber(ARGV[4]) do redis.call('SET', 'other:' .. i .. ':' .. j, string.rep('x', ARGV[3])) end
	end`
	for from := 0; from < keys; from += batch {
		err := r.client.Eval(ctx, script, nil, from, min(from+batch, keys)-1, valueBytes, spread).Err()
		if err != nil && !errors.Is(err, goredis.Nil) {
			return errors.Join(fmt.Errorf("fill the Redis: %w", err), r.close())
		}
	}
	return nil
}

func (r *redis) close() error { return r.client.Close() }

func (*redis) need(context.Context, *subject, int64) (int64, error) { return 0, nil }

// options: since 6.2 it switches transparent huge pages off for itself.
func (*redis) options(int64) []string { return []string{"--disable-thp", "no"} }

func (r *redis) warm(ctx context.Context, s *subject, cell *scenario.Cell) (said string, least int64, err error) {
	if err = r.open(ctx, s, s.drivers[cell.Size.Name].Rows); err != nil {
		return "", 0, err
	}
	r.copied, r.saving = 0, false
	setting, err := r.client.ConfigGet(ctx, "disable-thp").Result()
	if err == nil {
		err = r.client.BgSave(ctx).Err()
	}
	if cell.Page.Bytes == pagesize.Transparent {
		least = int64(s.mib(cell.Size)) << 20 / 2 // the rest may not have been free in one piece
	}
	return "disable-thp=" + setting["disable-thp"], least, err
}

// told are the numbers that the server tells of itself; "ok" is 1.
func (r *redis) told(ctx context.Context) (map[string]float64, error) {
	text, err := r.client.Info(ctx, "everything").Result()
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if value == "ok" {
			value = "1"
		}
		if x, err := strconv.ParseFloat(value, 64); err == nil && !math.IsNaN(x) {
			all[name] = x
		}
	}
	return all, err
}

// look has it save, unless it does, and notes what is copied: of the save that goes on, and of the last one. With a
// setting of its own for that (save) it would save before it ends, too, and not end where that fails.
func (r *redis) look(ctx context.Context) {
	_ = r.client.BgSave(ctx).Err()            // one goes on; end sees whether there was any
	if told, err := r.told(ctx); err == nil { // end asks again
		r.copied = max(r.copied, told["current_cow_peak"], told["rdb_last_cow_size"])
		r.saving = r.saving || told["rdb_bgsave_in_progress"] > 0
	}
}

// proved says in the words of an error that nothing is known of a save under the load. The one before the load says
// nothing: hardly anything was written meanwhile, and so hardly anything copied.
func (r *redis) proved(told map[string]float64) error {
	switch {
	case !r.saving:
		return errors.New("the Redis did not save while it was measured")
	case told["rdb_last_bgsave_status"] != 1:
		return errors.New("the Redis could not save: is there room for its dump.rdb?")
	}
	return nil
}

// end waits for the last save, and takes it away: the server begins without data.
func (r *redis) end(ctx context.Context, figure func(name string, is float64)) error {
	defer r.close()
	const most, pause = time.Minute, 50 * time.Millisecond
	for began := time.Now(); ; process.Sleep(ctx, pause) {
		told, err := r.told(ctx)
		switch {
		case err != nil:
			return err
		case told["rdb_bgsave_in_progress"] > 0 && time.Since(began) < most:
			continue
		}
		if err := r.proved(told); err != nil {
			return err
		}
		figure("copied", max(r.copied, told["rdb_last_cow_size"]))
		figure("fork", told["latest_fork_usec"]/1000)
		return os.Remove(r.saved)
	}
}
