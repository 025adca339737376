// Package page serves the page that shows the groups of a host in a browser: what each may have, has and waits for, as
// it is now and as it was recorded.
//
// A Handler answers GET alone and changes nothing. Its figures are those of package top, which `top` shows, too. While
// somebody watches it asks for each sample once, for all who watch. It may be used from any goroutine.
package page

import (
	"context"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"bulkhead/internal/observe"
	"bulkhead/internal/observe/record"
)

// Options of a Handler.
type Options struct {
	// Live waits for a sample after the one of a time; nil: only a record is shown.
	Live func(ctx context.Context, after time.Time) (*observe.Sample, error)
	// Segments gives the segments of the record that have ticks between two times, as record.Open does.
	Segments func(ctx context.Context, from, to time.Time) (io.ReadCloser, error)
	// Reach says from when to when there is a record.
	Reach   func(context.Context) (record.Reach, error)
	Of      string // the host, or the file
	Version string
	// Hint is what to do about an error; nil: nobody knows.
	Hint func(error) string
}

// Handler answers for the page.
type Handler struct {
	o   Options
	mux *http.ServeMux
}

// New makes a handler of "/" and what is below it.
func New(o Options) *Handler {
	if o.Hint == nil {
		o.Hint = func(error) string { return "" }
	}
	h := &Handler{o: o, mux: http.NewServeMux()}
	record := &archive{segments: o.Segments, hint: o.Hint, reading: make(chan struct{}, 1)}
	live := &hub{live: o.Live, recorded: record.last, hint: o.Hint}
	h.mux.Handle("GET /{$}", asset("index.html"))
	files, _ := fs.Glob(assets, "assets/*.*")
	vendored, _ := fs.Glob(assets, "assets/uplot/uPlot.*")
	for _, name := range append(files, vendored...) {
		h.mux.Handle("GET /"+name, asset(strings.TrimPrefix(name, "assets/")))
	}
	h.mux.HandleFunc("GET /api/about", h.about)
	h.mux.HandleFunc("GET /api/at", record.at)
	h.mux.HandleFunc("GET /api/series", record.series)
	h.mux.HandleFunc("GET /api/live", live.watch)
	return h
}

// policy lets the browser load what is served here and nothing else, and run no script that stands in the page itself.
const policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"

// ServeHTTP answers a request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for name, value := range map[string]string{"Content-Security-Policy": policy,
		"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache",
		"Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin"} {
		w.Header().Set(name, value)
	}
	h.mux.ServeHTTP(w, r)
}

// OfThisHost refuses who calls a server that only this host can reach by a name of somebody else (DNS rebinding): a
// page of theirs could read the answers. name is that of this host.
func OfThisHost(next http.Handler, name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !ours(r.Host, name) {
			http.Error(w, "This is for this host alone. Call it by localhost or by its address, not by another name.",
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// ours says whether a Host header is an address, localhost, or the name of this host.
func ours(host, name string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || strings.EqualFold(host, "localhost") || strings.EqualFold(host, name)
}

// reachTime is how long it may take to say from when to when there is a record.
const reachTime = 10 * time.Second

// about says what there is to be seen.
func (h *Handler) about(w http.ResponseWriter, r *http.Request) {
	_, offset := time.Now().Zone()
	v := struct {
		Of      string       `json:"of"`
		Version string       `json:"version"`
		Live    bool         `json:"live"`
		Now     time.Time    `json:"now"`
		Offset  int          `json:"offset_s"` // of the host's clock from UTC
		Columns []column     `json:"columns"`
		Reach   record.Reach `json:"reach"`
		Trouble *trouble     `json:"trouble,omitempty"`
	}{Of: h.o.Of, Version: h.o.Version, Live: h.o.Live != nil, Now: time.Now(), Offset: offset, Columns: columns}
	var err error
	ctx, cancel := context.WithTimeout(r.Context(), reachTime)
	defer cancel()
	if v.Reach, err = h.o.Reach(ctx); err != nil {
		v.Trouble = new(hint(h.o.Hint).trouble(err))
	}
	hint(h.o.Hint).answer(w, v, nil)
}
