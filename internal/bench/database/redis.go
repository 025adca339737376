package database

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"bulkhead/internal/bench/process"
)

// Redis starts Redis without persistence.
var Redis = redisLike("Redis", "redis_version:")

// valkey tells of itself in the words of Redis, and in its own.
var valkey = redisLike("Valkey", "valkey_version:")

func redisLike(title, version string) *Engine {
	return &Engine{
		Title:    title,
		Programs: []process.Program{{Name: "redis-server", Package: "redis-server"}},
		user:     "redis", port: 6379, end: syscall.SIGTERM,
		Install: func(_ context.Context, in *Instance) error {
			in.Socket = filepath.Join(in.RunDir, "redis.sock")
			return nil
		},
		command: func(in *Instance) []string {
			args := []string{
				in.paths["redis-server"], "--port", strconv.Itoa(in.Port), "--bind", "127.0.0.1", "--unixsocket",
				in.Socket, "--unixsocketperm", "700",
				"--dir", in.DataDir, "--save", "", "--appendonly", "no", "--daemonize", "no", "--logfile", in.log,
			}
			if in.buffer > 0 {
				args = append(args, "--maxmemory", fmt.Sprintf("%dmb", in.buffer))
			}
			return append(args, in.Options...)
		},
		greet: func(in *Instance, conn net.Conn) (string, error) {
			if _, err := conn.Write([]byte("INFO server\r\nQUIT\r\n")); err != nil {
				return "", err
			}
			lines := bufio.NewScanner(conn)
			for lines.Scan() {
				if v, found := strings.CutPrefix(lines.Text(), version); found {
					return strings.TrimSpace(v) + "-" + title, nil
				}
				if strings.HasPrefix(lines.Text(), "-") {
					return "", fmt.Errorf("it answers %q", lines.Text())
				}
			}
			return "", errors.Join(errors.New("it does not tell its version"), lines.Err())
		},
	}
}
