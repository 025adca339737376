package observing

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/observe/record"
	"bulkhead/internal/sampling"
)

// slowed is a state directory with the record of a victim whose CPU and disk a neighbour takes.
func slowed(t *testing.T) string {
	t.Helper()
	state := t.TempDir()
	r := record.New(record.Options{Dir: sampling.RecordIn(state)})
	defer r.Close()
	for i := range 30 {
		at := begin.Add(time.Duration(10*i) * time.Second)
		r.Take(tickOf(at, float64(10*i)))
	}
	return state
}

// tickOf is what was sampled after so many seconds.
func tickOf(at time.Time, n float64) record.Tick {
	group := func(metric, name string, value float64, labels ...string) record.Figure {
		role := map[string]string{"victim": "database", "reports": "batch"}[name]
		labels = append([]string{name, role, ""}, labels...)
		return record.Figure{Key: record.KeyOf("bulkhead_group_"+metric, labels...), Value: value}
	}
	host := func(metric string, value float64, labels ...string) record.Figure {
		return record.Figure{Key: record.KeyOf("bulkhead_host_"+metric, labels...), Value: value}
	}
	return record.Tick{At: at, Parts: []record.Part{
		{Name: "cpu", Read: at, Figures: []record.Figure{group("cpu_seconds_total", "victim", 0.5*n),
			group("cpu_seconds_total", "reports", 0.5*n)}},
		{Name: "pressure", Read: at, Figures: []record.Figure{
			group("pressure_seconds_total", "victim", 0.5*n, "cpu", "some"),
			group("pressure_seconds_total", "victim", 0.3*n, "io", "some")}},
		{Name: "tasks", Read: at, Figures: []record.Figure{group("threads", "victim", 1),
			group("threads", "reports", 8)}},
		{Name: "threads", Read: at, Figures: []record.Figure{group("cpu_waiting_seconds_total", "victim", 0.5*n),
			group("threads_io_bytes_total", "victim", 4e6*n, "read"),
			group("threads_io_operations_total", "victim", 1000*n, "read"),
			group("threads_io_bytes_total", "reports", 200e6*n, "write"),
			group("threads_io_operations_total", "reports", 200*n, "write")}},
		{Name: "cpus", Read: at, Figures: []record.Figure{group("cpu_each_seconds_total", "victim", 0.5*n, "0"),
			group("cpu_each_seconds_total", "reports", 0.5*n, "0"), host("cpu_each_seconds_total", n, "0"),
			host("cpu_each_seconds_total", 0.1*n, "1")}},
		{Name: "diskstats", Read: at, Figures: []record.Figure{host("disk_bytes_total", 4e6*n, "sda", "read"),
			host("disk_bytes_total", 210e6*n, "sda", "write"), host("disk_operations_total", 1000*n, "sda", "read"),
			host("disk_operations_total", 420*n, "sda", "write"),
			host("disk_operation_seconds_total", 2*n, "sda", "write")}},
	}}
}

// The record says who was to blame, in words.
func TestSuspectsOfTheRecord(t *testing.T) {
	out, err := verb(slowed(t), "suspects", "victim", "--at", "2026-11-20 01:04:00")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.ReplaceAll(`victim, from 2026-11-20 01:02:30 to 2026-11-20 01:04:00

reports is the first suspect: because of it victim waits for CPUs 50 % of its time, disks 19 %.

CPUs: 0.50 s waited in each second, 50 % of its time
counted from 'schedstat' of threads; CPU time by CPU from 'cpuacct.usage_percpu'
SHARE  SECONDS  WHO              GRADE      WHAT IT DID
100 %  0.500    reports (batch)  estimated  uses 0.50 CPUs, 0.50 of them where victim runs, with 8 threads
0.0 %  0.000    unexplained

disks: 0.30 s waited in each second, 30 % of its time
counted from 'io.pressure' of the group
SHARE  SECONDS  WHO              GRADE      WHAT IT DID
63 %   0.189    reports (batch)  estimated  about reads 0 B/s (0 requests) and writes 190.7 MiB/s (400) on sda
34 %   0.101    own load         estimated  about reads 3.8 MiB/s (1000 requests) and writes 0 B/s (0) on sda
3.2 %  0.009    outside          estimated  the kernel and processes of no group use the same disks
0.0 %  0.000    unexplained

memory: how long it waits is not known: no PSI of the group

network: how long it waits is not known: connections are looked at from now on only, as root; no record has them

What would hold them, or ease a limit of its own, for an hour:
  bulkhead set reports:cpu.limit=0.3 --for 1h
  bulkhead set reports:io.write.bandwidth=100MB/s --for 1h --on /dev/sda
`, "'", "`")
	if out != want {
		t.Errorf("it says\n%s\nand not\n%s", out, want)
	}
}

func TestSuspectsOfNothing(t *testing.T) {
	state := slowed(t)
	for _, c := range []struct{ args, words string }{
		{"no-such --at 01:04", `no group "no-such" is governed here: reports, victim`},
		{"victim --at 00:30", "too little is recorded between"},
		{"victim --at 01:04 --for 10m", "--for is from 1s to 2m0s"},
		{"victim --at 25:99", "--at: "},
		{"victim --file x", "say the time with --at"},
		{"victim --prove reports --at 01:04", "leave out --at, --file and --for"},
		{"victim --prove reports --for 10s", "leave out --at, --file and --for"},
		{"victim --prove=", "--prove: say which group"},
		{"victim --dry-run", "say of which group with --prove"},
	} {
		args := append([]string{"suspects"}, strings.Fields(c.args)...)
		for i, a := range args {
			if a == "01:04" || a == "00:30" {
				args[i] = "2026-11-20 " + a
			}
		}
		out, err := verb(state, args...)
		if err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%q: %v, %s", c.args, err, out)
		}
	}
	_, err := verb(filepath.Join(t.TempDir(), "none"), "suspects", "victim", "--at", "01:04")
	if err == nil || api.HintOf(err) == "" {
		t.Errorf("without a record: %v", err)
	}
}

// An experiment whose hold got no answer does not say that nothing is held.
func TestMayHold(t *testing.T) {
	now := time.Now()
	for code, may := range map[api.Code]bool{api.CodeLocked: false, api.CodeRefused: false, api.CodeUsage: false,
		api.CodeFailed: true, api.CodeInterrupted: true} {
		until := mayHold(&api.Error{Code: code, Err: errors.New("no answer")}, now)
		if may != until.Equal(now.Add(holdFor)) || may == until.IsZero() {
			t.Errorf("after an error of code %d it may be held until %v", code, until)
		}
	}
}
