// Package serve is the verb serve of the command line: what the agent samples, for browsers and for Prometheus, by a
// process of its own that needs no right but to read the agent's socket.
package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/spf13/cobra"

	"bulkhead/internal/agent/client"
	"bulkhead/internal/api"
	"bulkhead/internal/cli/usage"
	"bulkhead/internal/observe"
	"bulkhead/internal/observe/exposition"
	"bulkhead/internal/observe/figures"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/page"
)

const (
	// defaultListen is a port of this host alone.
	defaultListen = "127.0.0.1:9786"
	// unixPrefix begins the address of a unix socket.
	unixPrefix = "unix:"
)

// Session is what the verb shares with the others.
type Session struct {
	Socket, State *string // where the agent is; read when the verb runs
	Log           func() *slog.Logger
	Version       string
	// Segments and Reach read a file of the record, or where none is named what this host's agent has recorded.
	Segments func(ctx context.Context, file string, from, to time.Time) (io.ReadCloser, error)
	Reach    func(ctx context.Context, file string) (record.Reach, error)
}

// options are the flags of the verb.
type options struct {
	listen, config, textfile, file string
	every                          time.Duration
	perGroup, series               int
}

// Command gives the verb.
func Command(s Session) *cobra.Command {
	var o options
	c := &cobra.Command{
		Use:   "serve",
		Short: "a page for browsers, and metrics for Prometheus, by a process of its own",
		Long: `serve shows the groups of this host in a browser: what each may have, has and waits for, now and as it
was recorded. And it answers /metrics with the agent's last sample of what groups use, as text or OpenMetrics. The agent
reads the kernel on its own clock: a scrape costs nobody but serve. While somebody has the page open the agent reads
every second, as for "bulkhead top". While the agent is away, or its sample is old, bulkhead_up is 0 and there are no
figures of groups.

serve needs no right but to read the agent's socket, which is open to whom ` + "`agent: {read: …}`" + ` of the policy
names. It listens on this host alone unless --listen says otherwise; --web.config.file has certificates and users as
other exporters read them. With --textfile it opens no port: it writes a file for node_exporter's textfile collector.
With --file it shows a record that somebody sent, on any host, and no metrics. Nothing can be changed over it.

  /                                          the page; docs/page.md
  /metrics?collect[]=cpu&collect[]=memory    only these; "bulkhead collectors" lists them
  /metrics?exclude[]=limits                  all but these
  /metrics?collect[]=hr                      those that are read every 5 s; mr is 10 s, lr 60 s`,
		Example: `  bulkhead serve                       on http://127.0.0.1:9786/ and /metrics
  bulkhead serve --file incident       the page on what a colleague has sent
  bulkhead serve --listen :9786 --web.config.file web.yml
                                       for others, with TLS and users
  bulkhead serve --listen unix:/run/bulkhead-serve/metrics
  bulkhead serve --textfile /var/lib/prometheus/node-exporter/bulkhead.prom`,
		Args: usage.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch path, isUnix := strings.CutPrefix(o.listen, unixPrefix); {
			case o.textfile != "" && (cmd.Flags().Changed("listen") || o.config != ""):
				return usage.Errorf(cmd, "--textfile opens no port: leave --listen and --web.config.file out")
			case isUnix && (path == "" || path[0] == '@'): // an abstract one is open to everybody (unix(7))
				return usage.Errorf(cmd, "--listen unix: needs the path of a socket: unix:/run/bulkhead.metrics")
			case o.file != "" && o.textfile != "":
				return usage.Errorf(cmd, "--file has no metrics: leave it or --textfile out")
			case o.series < 1 || o.perGroup < 1:
				return usage.Errorf(cmd, "--max-series and --max-series-per-group are at least 1")
			}
			if o.file != "" {
				return o.show(cmd.Context(), s)
			}
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(garbage)
			}
			server := exposition.New(exposition.Options{Fetch: (&asker{Session: s}).fetch,
				Changed: changed(s.Log()), Version: s.Version, PerGroup: o.perGroup, Series: o.series})
			go server.Keep(cmd.Context())
			if o.textfile != "" {
				return o.write(cmd.Context(), server, s.Log())
			}
			return o.serve(cmd.Context(), s, server)
		},
	}
	f := c.Flags()
	f.StringVar(&o.listen, "listen", defaultListen, "the `address` to listen on: HOST:PORT, or unix:PATH")
	f.StringVar(&o.config, "web.config.file", "", "a `file` with certificates and users, as of other exporters")
	f.StringVar(&o.file, "file", "", "show this `file`, which \"dump --format record\" wrote, not this host")
	_ = c.MarkFlagFilename("file")
	f.StringVar(&o.textfile, "textfile", "", "write this `file` instead, for node_exporter's textfile collector")
	usage.SpanFlag(c, &o.every, "every", 15*time.Second, "how often to write the file, with --textfile")
	f.IntVar(&o.perGroup, "max-series-per-group", 70, "most figures of one group in an answer")
	f.IntVar(&o.series, "max-series", 10_000, "most figures in an answer")
	return c
}

// garbage is GOGC where the environment has none: little is in use between two samples, and a collection of garbage for
// each would be a sixth of what a scrape costs.
const garbage = 300

// asker asks for figures the agent that answered last, as long as it does, and then the one that runs. It is for one
// goroutine at a time.
type asker struct {
	Session

	last *client.Client // nil: none has answered
}

// fetch asks for the figures of the agent's last sample.
func (a *asker) fetch(ctx context.Context, had *figures.Set) (*figures.Set, error) {
	if a.last != nil {
		if set, err := a.last.Figures(ctx, had); err == nil {
			return set, nil
		}
	}
	var err error
	if a.last, err = a.running(ctx); err != nil {
		return nil, err
	}
	return a.last.Figures(ctx, had)
}

// running gives the agent that runs now.
func (s Session) running(ctx context.Context) (*client.Client, error) {
	c, err := client.Dial(ctx, *s.Socket, *s.State)
	if err == nil && c == nil {
		err = &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("no agent answers on %q", *s.Socket),
			Hint: "start the agent; whom it answers says `agent: {read: …}` of the policy"}
	}
	return c, err
}

// changed says in the log when samples cease to come, and when they come again.
func changed(log *slog.Logger) func(error) {
	return func(err error) {
		if err == nil {
			log.Info("the agent gives samples again")
			return
		}
		log.Warn("no sample of the agent: figures of groups are left out", "err", err, "hint", api.HintOf(err))
	}
}

// newer waits for a sample after the one of a time.
func (s Session) newer(ctx context.Context, after time.Time) (*observe.Sample, error) {
	running, err := s.running(ctx)
	if err != nil {
		return nil, err
	}
	return running.NewerSample(ctx, after)
}

// show answers with the page on a file until ctx ends.
func (o *options) show(ctx context.Context, s Session) error {
	if _, err := s.Reach(ctx, o.file); err != nil {
		return err
	}
	return o.serve(ctx, s, nil)
}

// page is the page of this host, or of a file.
func (o *options) page(s Session, of string) http.Handler {
	at := page.Options{Live: s.newer, Of: of, Version: s.Version, Hint: api.HintOf,
		Segments: func(ctx context.Context, from, to time.Time) (io.ReadCloser, error) {
			return s.Segments(ctx, o.file, from, to)
		},
		Reach: func(ctx context.Context) (record.Reach, error) { return s.Reach(ctx, o.file) }}
	if o.file != "" {
		at.Of, at.Live = filepath.Base(o.file), nil
	}
	return page.New(at)
}

// serve answers until ctx ends: with the page, and with metrics where there are some.
func (o *options) serve(ctx context.Context, s Session, metrics http.Handler) error {
	l, err := listen(o.listen)
	if err != nil {
		return err
	}
	log := s.Log()
	mux := http.NewServeMux()
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	host, _ := os.Hostname()
	mux.Handle("/", o.page(s, host))
	handler := http.Handler(mux)
	if _, tcp := l.Addr().(*net.TCPAddr); tcp && !open(l) {
		handler = page.OfThisHost(mux, host)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx }} // who watches the page is not waited for
	ended := context.AfterFunc(ctx, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
		defer cancel()
		_ = server.Shutdown(last)
	})
	defer ended()
	if open(l) && o.config == "" {
		log.Warn("everybody who reaches this address can read what groups use; --web.config.file sets users and TLS",
			"address", l.Addr().String())
	}
	err = web.Serve(l, server, &web.FlagConfig{WebConfigFile: &o.config}, log)
	switch {
	case errors.Is(err, http.ErrServerClosed):
		return nil
	case o.config != "":
		return &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("use the web file %q: %w", o.config, err),
			Hint: "docs/metrics.md says where its format is described"}
	}
	return err
}

// listen opens a TCP port, or a unix socket "unix:PATH" whose mode lets its user and group in.
func listen(address string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(address, unixPrefix)
	if !isUnix {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("listen on %q: %w", address, err),
				Hint: "give another --listen HOST:PORT"}
		}
		return l, nil
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		conn, err := net.Dial("unix", path)
		if err == nil {
			_ = conn.Close()
		}
		// One that does not take the connection may be busy, or somebody else's.
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			return nil, &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("somebody listens on %q already", path),
				Hint: "stop that one, or give another --listen unix:PATH"}
		}
		_ = os.Remove(path) // a dead one's; what fails is said by listening
	}
	mask := syscall.Umask(0o117)
	l, err := net.Listen("unix", path)
	syscall.Umask(mask)
	if err != nil {
		return nil, &api.Error{Code: api.CodeFailed, Err: fmt.Errorf("listen on %q: %w", path, err),
			Hint: "its directory has to be there, and to be yours"}
	}
	return l, nil
}

// open says whether a listener is reached from other hosts.
func open(l net.Listener) bool {
	at, tcp := l.Addr().(*net.TCPAddr)
	return tcp && !at.IP.IsLoopback()
}

// write writes the file again and again until ctx ends, and then takes it away: nobody is to take old figures for new.
func (o *options) write(ctx context.Context, server *exposition.Server, log *slog.Logger) error {
	if filepath.Ext(o.textfile) != ".prom" {
		log.Warn("node_exporter reads files whose names end in .prom alone", "file", o.textfile)
	}
	failed, written := false, false
	defer func() {
		if written {
			_ = os.Remove(o.textfile)
		}
	}()
	for {
		// It is written beside the file and renamed: who reads it meanwhile sees the old one whole.
		err := prometheus.WriteToTextfile(o.textfile, server.Gatherer(ctx))
		switch {
		case err != nil && !failed:
			log.Error("the file cannot be written; trying again", "file", o.textfile, "err", err)
		case err == nil && failed:
			log.Info("the file is written again", "file", o.textfile)
		}
		failed, written = err != nil, written || err == nil
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(o.every):
		}
	}
}
