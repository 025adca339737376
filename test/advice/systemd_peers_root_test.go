//go:build root

package advice

import (
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// peers runs the peers on the same machine with the same faults. What the table says of each is in what it prints, and
// each fault is in the table.
func peers(t *testing.T) {
	table := readPeers(t)
	said := map[string]string{}
	var one sync.Mutex
	var all sync.WaitGroup
	for _, p := range table.Peers {
		name := p.Name + " " + version(t, p.Name)
		all.Go(func() {
			out, err := exec.Command("/bin/sh", "-c", p.Runs).CombinedOutput()
			status := "exit status 0"
			if err != nil {
				status = err.Error()
			}
			one.Lock()
			defer one.Unlock()
			said[name] = words(string(out))
			t.Logf("%s %s:\n%s\n%s %s: %s", peerMark, name, out, endMark, name, status)
		})
	}
	all.Wait()
	table.hold(t, said)
	inTable := map[string]bool{}
	for _, row := range table.Faults {
		inTable[row.Fault] = true
	}
	for _, f := range faults {
		if !inTable[words(f.what)] {
			t.Errorf("the table of peers lacks %q", f.what)
		}
		delete(inTable, words(f.what))
	}
	for what := range inTable {
		t.Errorf("the table of peers has %q, which is not planted", what)
	}
}

// version is that of the package with a program.
func version(t *testing.T, name string) string {
	t.Helper()
	pkg, _, _ := strings.Cut(sh(t, "dpkg -S /usr/bin/"+name+" /usr/sbin/"+name+" 2>/dev/null || :"), ":")
	return strings.TrimSpace(sh(t, "dpkg-query -W -f '${Version}' "+pkg))
}
