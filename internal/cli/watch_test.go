package cli

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
)

// `status --watch` prints again and again until it is interrupted, from the second time on with the CPU in use.
func TestWatch(t *testing.T) {
	was, who := atSteps, euid
	t.Cleanup(func() { atSteps, euid = was, who })
	euid = func() int { return 0 }
	m := newModel(t, []txtar.File{{Name: "p.yaml",
		Data: []byte("version: 1\ngroups:\n  jobs: {match: [{exe: backup}], cpu: {limit: 1}}\n")}})
	t.Chdir(m.dir)
	state := []string{"--state", filepath.Join(m.dir, "state"), "--socket", filepath.Join(m.dir, "s")}
	var out, errw bytes.Buffer
	if code := m.run(append(state, "apply", "--policy", "p.yaml"), "", &out, &errw); code != 0 {
		t.Fatal(&errw)
	}
	out.Reset()
	ctx, stop := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer stop()
	code := runVerb(ctx, append(state, "status", "--watch", "--every", "300ms"), strings.NewReader(""), &out, &errw)
	if tables := strings.Count(out.String(), "GROUP  PROCS  USED"); code != 0 || tables < 2 {
		t.Errorf("exit code %d, %d tables:\n%s%s", code, tables, &out, &errw)
	}
	if rows := strings.Split(out.String(), "\njobs "); len(rows) < 3 || !strings.Contains(rows[1][:40], "0.0s") ||
		strings.Contains(rows[2][:40], "0.0s") {
		t.Errorf("CPU used, then CPU in use:\n%s", &out)
	}
}
