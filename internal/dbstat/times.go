package dbstat

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"
)

// Bucket counts the statements that took no longer than UpTo, and longer than the bucket before.
type Bucket struct {
	UpTo  time.Duration // Longest: there is no bound
	Calls uint64
	Took  time.Duration // all of them together
}

// Longest stands for no bound.
const Longest = time.Duration(1<<63 - 1)

// NoTimesError says that a server does not count how long its statements take, and how it would.
type NoTimesError struct{ Reason, Hint string }

func (e *NoTimesError) Error() string { return e.Reason }

// steps are the bounds that MySQL's buckets are put together to.
var steps = func() (all []time.Duration) {
	for unit := 10 * time.Microsecond; unit <= time.Second; unit *= 10 {
		all = append(all, unit, 2*unit, 5*unit)
	}
	return append(all, 10*time.Second, Longest)
}()

// fold puts buckets together to those of steps: each goes to the first that holds its upper bound.
func fold(all []Bucket) (folded []Bucket) {
	for _, b := range all {
		i, _ := slices.BinarySearch(steps, b.UpTo)
		if n := len(folded); n == 0 || folded[n-1].UpTo != steps[i] {
			folded = append(folded, Bucket{UpTo: steps[i]})
		}
		last := &folded[len(folded)-1]
		last.Calls += b.Calls
		last.Took += b.Took
	}
	return folded
}

// mysqlTimes asks a MySQL or a MariaDB.
func mysqlTimes(ctx context.Context, db *sql.DB) ([]Bucket, error) {
	all, err := histogramOfMySQL(ctx, db)
	var unknown *mysql.MySQLError
	if errors.As(err, &unknown) && unknown.Number == noSuchTable {
		return responseTimes(ctx, db)
	}
	if err != nil {
		return nil, fmt.Errorf("ask MySQL for its histogram of statements: %w", err)
	}
	if len(all) == 0 {
		return nil, &NoTimesError{"MySQL counts no statements: performance_schema is OFF, or nothing was asked of it",
			"start the server with performance_schema=ON"}
	}
	return fold(all), nil
}

// What MySQL and MariaDB answer when there is no such table (ER_NO_SUCH_TABLE, ER_UNKNOWN_TABLE).
const noSuchTable, unknownTable = 1146, 1109

// histogramOfMySQL reads the buckets of MySQL 8, whose times are picoseconds.
func histogramOfMySQL(ctx context.Context, db *sql.DB) (all []Bucket, err error) {
	rows, err := db.QueryContext(ctx, "SELECT BUCKET_TIMER_LOW, BUCKET_TIMER_HIGH, COUNT_BUCKET FROM "+
		"performance_schema.events_statements_histogram_global WHERE COUNT_BUCKET > 0 ORDER BY BUCKET_NUMBER")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var low, high, calls uint64
		if err := rows.Scan(&low, &high, &calls); err != nil {
			return nil, err
		}
		b := Bucket{UpTo: Longest, Calls: calls, Took: times(time.Duration(low/1000), calls)}
		if high/1000 < uint64(Longest) && high < 1<<63 {
			b.UpTo = time.Duration(high / 1000)
			b.Took = times(time.Duration((low/2+high/2)/1000), calls)
		}
		all = append(all, b)
	}
	return all, rows.Err()
}

// times is what so many calls took together; the longest time there is where that is more.
func times(each time.Duration, calls uint64) time.Duration {
	if all := float64(each) * float64(calls); all < float64(Longest) {
		return time.Duration(all)
	}
	return Longest
}

// responseTimes reads the plugin QUERY_RESPONSE_TIME of MariaDB: bounds and sums are texts of seconds, and the last
// bound is "TOO LONG".
func responseTimes(ctx context.Context, db *sql.DB) (all []Bucket, err error) {
	rows, err := db.QueryContext(ctx, "SELECT TIME, COUNT, TOTAL FROM information_schema.QUERY_RESPONSE_TIME")
	var unknown *mysql.MySQLError
	if errors.As(err, &unknown) && (unknown.Number == unknownTable || unknown.Number == noSuchTable) {
		return nil, &NoTimesError{"MariaDB does not count how long statements take without its plugin " +
			"query_response_time", "INSTALL SONAME 'query_response_time'; SET GLOBAL query_response_time_stats = ON, " +
			"and before that SET GLOBAL query_response_time_range_base = 2 for finer steps"}
	}
	if err != nil {
		return nil, fmt.Errorf("ask MariaDB for its response times: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var bound, total string
		var calls uint64
		if err := rows.Scan(&bound, &calls, &total); err != nil {
			return nil, err
		}
		b, err := responseTime(bound, total, calls)
		if err != nil {
			return nil, err
		}
		if calls > 0 {
			all = append(all, b)
		}
	}
	if len(all) == 0 && rows.Err() == nil {
		return nil, &NoTimesError{"MariaDB has the plugin query_response_time and counts nothing",
			"SET GLOBAL query_response_time_stats = ON"}
	}
	return all, rows.Err()
}

func responseTime(bound, total string, calls uint64) (Bucket, error) {
	b := Bucket{UpTo: Longest, Calls: calls}
	if text := strings.TrimSpace(bound); text != "TOO LONG" {
		x, err := strconv.ParseFloat(text, 64)
		if err != nil || x < 0 || x > 1e6 {
			return b, fmt.Errorf("ask MariaDB for its response times: %q is no time", bound)
		}
		b.UpTo = time.Duration(x*1e6+0.5) * time.Microsecond
		b.Took = times(b.UpTo, calls)
	}
	if x, err := strconv.ParseFloat(strings.TrimSpace(total), 64); err == nil && x >= 0 && x < 1e9 {
		b.Took = time.Duration(x * float64(time.Second))
	}
	return b, nil
}

// redisTimes asks a Redis or a Valkey. Its counts are of all calls up to a bound, command by command.
func redisTimes(ctx context.Context, c *redis.Client) ([]Bucket, error) {
	answer, err := c.Do(ctx, "LATENCY", "HISTOGRAM").Result()
	if err != nil {
		var refused redis.Error
		if errors.As(err, &refused) && strings.Contains(strings.ToLower(err.Error()), "unknown") {
			return nil, &NoTimesError{"this Redis does not count how long commands take", "Redis 7.0 and later do"}
		}
		return nil, fmt.Errorf("ask Redis for LATENCY HISTOGRAM: %w", err)
	}
	calls := map[time.Duration]uint64{}
	for _, command := range pairs(answer) {
		before := uint64(0)
		for _, field := range pairs(command[1]) {
			if field[0] != "histogram_usec" {
				continue
			}
			for _, bucket := range pairs(field[1]) {
				bound, isBound := bucket[0].(int64)
				upTo, isCount := bucket[1].(int64)
				if !isBound || !isCount || uint64(upTo) < before {
					return nil, errors.New("ask Redis for LATENCY HISTOGRAM: it is of another form")
				}
				calls[time.Duration(bound)*time.Microsecond] += uint64(upTo) - before
				before = uint64(upTo)
			}
		}
	}
	if len(calls) == 0 {
		return nil, &NoTimesError{"this Redis has counted no commands yet, or latency-tracking is off",
			"CONFIG SET latency-tracking yes"}
	}
	all := make([]Bucket, 0, len(calls))
	for bound, n := range calls {
		all = append(all, Bucket{UpTo: bound, Calls: n, Took: times(bound*3/4, n)})
	}
	slices.SortFunc(all, func(a, b Bucket) int { return int(a.UpTo - b.UpTo) })
	return all, nil
}

// pairs are those of a map (RESP3), or of a list of keys and values (RESP2), in the order of the keys.
func pairs(answer any) (all [][2]any) {
	switch x := answer.(type) {
	case map[any]any:
		for k, v := range x {
			all = append(all, [2]any{k, v})
		}
		slices.SortFunc(all, func(a, b [2]any) int {
			m, isNumber := a[0].(int64)
			n, both := b[0].(int64)
			if isNumber && both {
				return int(m - n)
			}
			return strings.Compare(fmt.Sprint(a[0]), fmt.Sprint(b[0]))
		})
	case []any:
		for i := 0; i+1 < len(x); i += 2 {
			all = append(all, [2]any{x[i], x[i+1]})
		}
	}
	return all
}

// noTimesOfPostgres: pg_stat_statements has sums and means, and no distribution.
var noTimesOfPostgres = &NoTimesError{"PostgreSQL does not count how many statements took how long",
	"pg_stat_statements has mean and deviation of each"}
