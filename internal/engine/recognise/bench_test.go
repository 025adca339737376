package recognise

import (
	"fmt"
	"testing"

	"bulkhead/internal/linux/procfs"
	"bulkhead/internal/linux/sockets"
)

// crowd is 20,000 processes as a large host has them: kernel threads, services, scripts in several
// languages, shells, and 35 database servers with 4,000 children.
func crowd() ([]procfs.Process, fake) {
	const size = 20000
	src := fake{listeners: make(map[int][]sockets.Listener)}
	var procs []procfs.Process
	add := func(ppid int, exe, comm, cmdline string) int {
		p := process(100+len(procs), ppid, exe, comm, cmdline)
		p.UID = 1000 + len(procs)%7
		procs = append(procs, p)
		return p.PID
	}
	for range 300 {
		add(2, "", "kworker/0:1", "")
		procs[len(procs)-1].Kernel = true
	}
	for n := range 20 {
		exe := "/usr/lib/postgresql/15/bin/postgres"
		main := add(1, exe, "postgres", fmt.Sprintf("%s -D /pg/%d -p %d", exe, n, 5432+n))
		src.listeners[main] = listening(main, 5432+n)[main]
		for c := range 200 {
			add(main, exe, "postgres", "")
			procs[len(procs)-1].Args = []string{fmt.Sprintf("postgres: app shop 192.0.2.7(%d) idle", 40000+c)}
		}
	}
	for n := range 10 {
		main := add(1, "/usr/sbin/mysqld", "mysqld", fmt.Sprintf("/usr/sbin/mysqld --port=%d --datadir=/my/%d", 3306+n,
			n))
		src.listeners[main] = listening(main, 3306+n)[main]
	}
	for n := range 5 {
		main := add(1, "/usr/bin/redis-check-rdb", "redis-server", "")
		procs[len(procs)-1].Args = []string{fmt.Sprintf("/usr/bin/redis-server *:%d", 6379+n)}
		src.listeners[main] = listening(main, 6379+n)[main]
	}
	for n := 0; len(procs) < size; n++ {
		switch n % 8 {
		case 0:
			add(1, "/usr/bin/python3.11", "python3", fmt.Sprintf("/usr/bin/python3 -u /opt/app/worker.py --shard=%d",
				n))
		case 1:
			add(1, "/usr/bin/bash", "bash", "/bin/bash /usr/local/bin/job.sh")
		case 2:
			add(1, "/usr/lib/jvm/java-17-openjdk-amd64/bin/java", "java",
				fmt.Sprintf("java -Xmx2g -XX:+UseG1GC -Dname=app%d -jar /opt/app/app.jar --spring.profiles.active=live",
					n))
		case 3:
			add(1, "/usr/sbin/nginx", "nginx", "nginx: worker process")
		default:
			add(1, fmt.Sprintf("/usr/bin/tool%d", n%40), fmt.Sprintf("tool%d", n%40),
				fmt.Sprintf("/usr/bin/tool%d --config /etc/tool/%d.yaml --verbose", n%40, n))
		}
	}
	return procs, src
}

// BenchmarkTracker is a look by a tracker that knows the servers already, as the agent does it.
func BenchmarkTracker(b *testing.B) {
	procs, src := crowd()
	tracker := Tracker{Keep: 1 << 30}
	if found := tracker.Recognise(procs, src); len(found) != 35 {
		b.Fatalf("%d instances", len(found))
	}
	b.ReportAllocs()
	for b.Loop() {
		tracker.Recognise(procs, src)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(procs)), "ns/process")
}

// BenchmarkFirstLook is a first look, which asks about every server.
func BenchmarkFirstLook(b *testing.B) {
	procs, src := crowd()
	b.ReportAllocs()
	for b.Loop() {
		Instances(procs, src)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(procs)), "ns/process")
}

// BenchmarkOracle is a look at 10 Oracle instances with 400 sessions each and 200 backups that are attached.
func BenchmarkOracle(b *testing.B) {
	const home = "/u01/app/oracle/product/19.0.0/dbhome_1/bin/"
	var procs []procfs.Process
	src := fake{env: make(map[int][]string)}
	add := func(exe, args string) int {
		p := process(100+len(procs), 1, exe, "oracle", args)
		procs = append(procs, p)
		return p.PID
	}
	for n := range 10 {
		for _, name := range []string{"pmon", "lgwr", "dbw0", "ckpt", "smon"} {
			add(home+"oracle", fmt.Sprintf("ora_%s_SID%d", name, n))
		}
		for range 400 {
			add(home+"oracle", fmt.Sprintf("oracleSID%d (LOCAL=NO)", n))
		}
		for range 20 {
			src.env[add(home+"expdp", "expdp")] = []string{fmt.Sprintf("ORACLE_SID=SID%d", n)}
		}
	}
	tracker := Tracker{Keep: 1 << 30}
	if found := tracker.Recognise(procs, src); len(found) != 10 || len(found[3].Members) != 405 ||
		len(found[3].Helpers) != 20 {
		b.Fatalf("found %v", found)
	}
	b.ReportAllocs()
	for b.Loop() {
		tracker.Recognise(procs, src)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(procs)), "ns/process")
}
