package database

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"bulkhead/internal/bench/process"
	"bulkhead/internal/dblogin"
)

// Query asks our PostgreSQL in one of its databases: a row is a line, its columns have a | between them.
func (in *Instance) Query(ctx context.Context, database, query string) (string, error) {
	return in.output(ctx, process.Spec{Args: []string{in.paths["psql"], "--host=" + in.RunDir,
		"--port=" + strconv.Itoa(in.Port), "--username=postgres", "--no-psqlrc", "--quiet", "--tuples-only",
		"--no-align", "--set=ON_ERROR_STOP=1", "--command=" + query, database}})
}

// Value asks our MariaDB or MySQL, in one of its databases, for one value.
func (in *Instance) Value(ctx context.Context, name, query string) (value string, err error) {
	login, err := in.own()
	if err != nil {
		return "", err
	}
	db, err := login.OpenMySQL(name)
	if err != nil {
		return "", err
	}
	var v sql.NullString
	err = db.QueryRowContext(ctx, query).Scan(&v)
	if err = errors.Join(err, db.Close()); err != nil {
		return "", fmt.Errorf("%s %s: %s: %w", in.Kind.Title, in.Name, query, err)
	}
	return v.String, nil
}

// Redis is a connection to our Redis, made when it is needed.
func (in *Instance) Redis() (*redis.Client, error) {
	login, err := dblogin.Parse("unix://" + in.Socket)
	if err != nil {
		return nil, err
	}
	return login.OpenRedis(), nil
}

// HugePages asks our PostgreSQL, which is stopped, how many pages of a size in bytes its shared memory takes
// (PostgreSQL 15).
func (in *Instance) HugePages(ctx context.Context, size int64) (int64, error) {
	said, err := in.output(ctx, process.Spec{Dir: in.DataDir, Credential: in.owner, Args: append(in.Kind.command(in),
		"-c", fmt.Sprintf("huge_page_size=%dkB", size>>10), "-C", "shared_memory_size_in_huge_pages")})
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseInt(said, 10, 64)
	if err != nil || pages <= 0 {
		return 0, fmt.Errorf("ask PostgreSQL how many pages of %d KiB it takes: it says %q", size>>10, said)
	}
	return pages, nil
}

// output runs a program to its end and gives what it said.
func (in *Instance) output(ctx context.Context, s process.Spec) (string, error) {
	var out, complaints bytes.Buffer
	s.Stdout, s.Stderr = &out, &complaints
	if err := in.Supervisor.Run(ctx, s); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", s.Args[0], err, process.LastLines(complaints.String(), 10))
	}
	return strings.TrimSpace(out.String()), nil
}
