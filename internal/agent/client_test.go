package agent

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// An agent that was stopped while somebody waits for a sample does not keep that one waiting.
func TestNewerSampleOfAStoppedAgent(t *testing.T) {
	dir, err := os.MkdirTemp("", "bh") // the path of a socket is short (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute,
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	c := newClient(socket)
	c.patience = 20 * time.Millisecond
	if one, err := c.NewerSample(t.Context(), time.Time{}); !errors.Is(err, ErrCut) {
		t.Errorf("it gives %+v, %v", one, err)
	}
}
