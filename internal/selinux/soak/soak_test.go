package soak_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/selinux/avc"
	"bulkhead/internal/selinux/soak"
	"bulkhead/internal/selinux/verdict"
	"bulkhead/internal/state"
)

func denied(ms int64, comm, source, target string) string {
	return fmt.Sprintf("type=AVC msg=audit(%d.%03d:%d): avc:  denied  { read } for  pid=7 comm=%q name=\"x\" "+
		"scontext=system_u:system_r:%s:s0 tcontext=system_u:object_r:%s:s0 tclass=file permissive=1\n",
		ms/1000, ms%1000, ms, comm, source, target)
}

// Each denial belongs to the checkpoint that was the last before it, to the millisecond in which it begins; what was
// before the soak to none.
func TestOf(t *testing.T) {
	at := func(ms int64) time.Time { return time.UnixMilli(ms).Add(400 * time.Microsecond) }
	s := state.Soak{At: at(1000), Domains: []string{"mysqld_t"}, Checkpoints: []state.Checkpoint{
		{Name: "stop-start", At: at(2000)}, {Name: "backup", At: at(3000)}, {Name: "stop-start", At: at(4000)}}}
	log := &avc.Log{}
	text := denied(999, "old", "mysqld_t", "tmp_t") + denied(1000, "mariadbd", "mysqld_t", "tmp_t") +
		denied(2000, "sh", "mysqld_t", "bin_t") + denied(2999, "mariadbd", "mysqld_t", "tmp_t") +
		denied(2500, "httpd", "httpd_t", "tmp_t") + denied(4001, "mariadbd", "mysqld_t", "etc_t") +
		denied(6000, "late", "mysqld_t", "tmp_t")
	if err := log.Read(strings.NewReader(text), time.Time{}); err != nil {
		t.Fatal(err)
	}
	all, others := soak.Of(log, s, verdict.Host{}, time.UnixMilli(5000), state.Audited{})
	got := ""
	for _, c := range all {
		got += fmt.Sprintf("%s %d", c.Name, c.Denials)
		for _, g := range c.Groups {
			got += fmt.Sprintf(" %s:%s", g.Target, strings.Join(g.Commands, ","))
		}
		got += "\n"
	}
	const want = " 1 tmp_t:mariadbd\nstop-start 2 bin_t:sh tmp_t:mariadbd\nbackup 0\nstop-start 1 etc_t:mariadbd\n"
	if got != want || others != 1 {
		t.Errorf("%d others, and\n%swant\n%s", others, got, want)
	}
}

// Records that the kernel has lost are told of each checkpoint: by its counter, which begins anew with a boot, and
// where somebody sets it back. Where it could not be read, nothing is told.
func TestLosses(t *testing.T) {
	at := func(ms int64, boot string, lost uint32) state.Checkpoint {
		return state.Checkpoint{Name: "c", At: time.UnixMilli(ms), Audit: state.Audited{Boot: boot, Lost: lost}}
	}
	s := state.Soak{At: time.UnixMilli(1), Audit: state.Audited{Boot: "a", Lost: 7}, Checkpoints: []state.Checkpoint{
		at(2, "a", 7), at(3, "a", 19), at(4, "a", 2), at(5, "b", 3), at(6, "", 0)}}
	all, _ := soak.Of(&avc.Log{}, s, verdict.Host{}, time.UnixMilli(7), state.Audited{Boot: "b", Lost: 4})
	got := ""
	for _, c := range all {
		if c.Lost == nil {
			got += "unknown "
			continue
		}
		got += fmt.Sprintf("%d:%v ", *c.Lost, c.Rebooted)
	}
	if want := "0:false 12:false 2:false 3:true unknown unknown "; got != want {
		t.Errorf("it has %s, want %s", got, want)
	}
}

// A case is left until a checkpoint has its name. Each says how to force it.
func TestLeft(t *testing.T) {
	for _, c := range soak.Cases {
		if !soak.Valid(c.Name) || len(c.How) == 0 {
			t.Errorf("%+v", c)
		}
	}
	left := soak.Left(state.Soak{Checkpoints: []state.Checkpoint{{Name: "backup"}, {Name: "own"}, {Name: "backup"}}})
	for _, c := range left {
		if c.Name == "backup" {
			t.Error("backup is left")
		}
	}
	if len(left) != len(soak.Cases)-1 {
		t.Errorf("%d of %d are left", len(left), len(soak.Cases))
	}
	for _, name := range []string{"", "A", "a b", "-a", "a\nb", strings.Repeat("a", 41)} {
		if soak.Valid(name) {
			t.Errorf("%q is a name", name)
		}
	}
}
