package advice

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"bulkhead/internal/advise"
	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/transaction"
)

// largeHost is the variable with the directory of a captured host: the test binary is `advise --json` on it then.
const largeHost = "BULKHEAD_TEST_LARGE_HOST"

func TestMain(m *testing.M) {
	root := os.Getenv(largeHost)
	if root == "" {
		os.Exit(m.Run())
	}
	look := func() (*transaction.Controller, error) {
		return transaction.Open(transaction.Options{NoState: true, Root: root})
	}
	c := Command(io.Discard, look, func(v any, _ func()) error { return json.NewEncoder(os.Stdout).Encode(v) })
	c.SetArgs(nil)
	if err := c.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status, err := os.ReadFile("/proc/self/status") // getrusage(2) has what the parent had at the fork
	if _, most, there := strings.Cut(string(status), "VmHWM:"); err == nil && there {
		fmt.Fprintln(os.Stderr, strings.Fields(most)[0])
	}
	os.Exit(0)
}

// large makes a captured host of 20 instances and 60 disks, each instance on a file system of its own.
func large(t testing.TB) (root string) {
	t.Helper()
	over, err := os.ReadFile("../../advise/gather/testdata/tuned.txtar")
	if err != nil {
		t.Fatal(err)
	}
	root = linuxtest.Unpack(t, linuxtest.Text(t, "storage/dbhost")+string(over))
	put := func(name, text string) {
		t.Helper()
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(name, target string) {
		t.Helper()
		at := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, at); err != nil {
			t.Fatal(err)
		}
	}
	mounts, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	all := bytes.NewBuffer(mounts)
	for i := range 60 {
		name, number := fmt.Sprintf("vd%c%c", 'a'+i/26, 'a'+i%26), fmt.Sprintf("254:%d", 16*i)
		dir := "sys/devices/pci0000:00/0000:00:05.0/virtio" + strconv.Itoa(i) + "/block/" + name
		for file, text := range map[string]string{"dev": number, "size": "2097152", "serial": "disk" + strconv.Itoa(i),
			"queue/rotational": "1", "queue/scheduler": "none mq-deadline [bfq]", "queue/read_ahead_kb": "4096",
			"queue/nr_requests": "16", "queue/nomerges": "2", "queue/rq_affinity": "0", "queue/iostats": "1",
			"queue/add_random": "0", "queue/write_cache": "write back", "queue/wbt_lat_usec": "0"} {
			put(dir+"/"+file, text+"\n")
		}
		link(dir+"/device", "../../../virtio"+strconv.Itoa(i))
		link("sys/block/"+name, "../"+dir[len("sys/"):])
		link("sys/dev/block/"+number, "../../"+dir[len("sys/"):])
		if i < 20 {
			fmt.Fprintf(all, "%d 21 %s / /srv/m%d rw,strictatime shared:%d - ext4 /dev/%s rw,discard\n", 100+i, number,
				i, 100+i, name)
		}
	}
	put("proc/self/mountinfo", all.String())
	for i := range 16 { // beside the four that are there
		pid, home := 3000+i, fmt.Sprintf("srv/m%d", i)
		put(home+"/my.cnf", fmt.Sprintf("[mysqld]\nport = %d\ndatadir = /%s/data\ninnodb_buffer_pool_size = 8G\n",
			3400+i, home))
		put(home+"/data/ibdata1", "")
		linuxtest.Process(t, root, 812, pid, 1, uint64(5000+i), "/usr/sbin/mysqld --defaults-file=/"+home+"/my.cnf")
		proc := fmt.Sprintf("proc/%d/", pid)
		link(proc+"cwd", "/"+home+"/data")
		link(proc+"root", "/")
		link(proc+"ns/mnt", "mnt:[4026531841]")
		for fd := range 40 {
			link(fmt.Sprintf("%sfd/%d", proc, fd), "/"+home+"/data/ibdata1")
			put(fmt.Sprintf("%sfdinfo/%d", proc, fd), "pos:\t0\nflags:\t0140002\nmnt_id:\t25\n")
		}
		put(proc+"limits", "Limit                     Soft Limit           Hard Limit           Units\n"+
			"Max open files            1024                 524288               files\n")
	}
	return root
}

// advised has a process of its own advise of the host below a directory: its report, the time of processors that it
// used, and the most memory that it held, in KiB.
func advised(t testing.TB, root string) (rep advise.Report, cpu time.Duration, most int) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), largeHost+"="+root, "GOGC=", "GOMEMLIMIT=")
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &rep)
	}
	if err != nil {
		t.Fatalf("advise: %v\n%s", err, said.String())
	}
	most, err = strconv.Atoi(strings.TrimSpace(said.String()))
	if err != nil {
		t.Fatalf("the peak of its memory: %v", err)
	}
	return rep, cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), most
}

// BenchmarkLargeHost: advise reads a host of 20 instances and 60 disks in a second of a processor and in 50 MiB, the
// median of seven runs.
func BenchmarkLargeHost(b *testing.B) {
	root := large(b)
	for range b.N {
		var times, sizes []float64
		for range 7 {
			_, cpu, most := advised(b, root)
			times, sizes = append(times, cpu.Seconds()), append(sizes, float64(most)/1024)
		}
		slices.Sort(times)
		slices.Sort(sizes)
		b.ReportMetric(times[3], "cpu-s")
		b.ReportMetric(sizes[3], "MiB")
		if times[3] > 1 || sizes[3] > 50 {
			b.Errorf("it took %.2f s of a processor (%.2f to %.2f) and %.1f MiB",
				times[3], times[0], times[6], sizes[3])
		}
	}
}

// advise finds what is wrong of each instance and each disk of a large host.
func TestLargeHost(t *testing.T) {
	rep, _, _ := advised(t, large(t))
	instances, disks := map[string]bool{}, map[string]bool{}
	for _, f := range rep.Findings {
		for _, on := range f.On {
			switch f.Rule {
			case "LIM-01":
				instances[on] = true
			case "IO-01":
				disks[on] = true
			}
		}
	}
	if len(instances) < 16 || len(disks) < 16 {
		t.Errorf("found of %d instances and %d disks: notes %q", len(instances), len(disks), rep.Notes)
	}
}
