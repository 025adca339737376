package load

// Loaders are the load generators by the name that scenarios give them.
var Loaders = map[string]*loader{
	"sysbench": sysbench, "pgbench": pgbench, "redis-benchmark": redisBenchmark, "fio": fio, "iperf3": iperf3,
	"heartbeat": Heartbeat, "sleeper": sleeper, "login": loginShell,
}
