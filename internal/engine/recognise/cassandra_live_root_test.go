//go:build root

package recognise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"bulkhead/internal/bench/rootfs"
	"bulkhead/internal/engine"
	"bulkhead/internal/host"
	"bulkhead/internal/policy"
	"bulkhead/internal/testhost"
	"bulkhead/internal/testhost/release"
)

const cassandraVersion = "5.0.5"

// A real Apache Cassandra: recognised with its port, directories and version, and nodetool attached to it.
func TestLiveCassandra(t *testing.T) {
	if !release.Wanted() {
		t.Skip("Apache Cassandra is downloaded: make engines-test")
	}
	s := newServer(t, "nobody", "default-jre-headless")
	java := testhost.Program(t, "default-jre-headless", "/usr/bin/java")
	jars := filepath.Join(cassandraJars(t), "*")
	storage := testhost.FreePort(t)
	config := fmt.Sprintf(`cluster_name: test
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
endpoint_snitch: SimpleSnitch
commitlog_sync: periodic
commitlog_sync_period: 10000ms
data_file_directories:
    - %[1]s/data
commitlog_directory: %[1]s/commitlog
saved_caches_directory: %[1]s/saved_caches
hints_directory: %[1]s/hints
cdc_raw_directory: %[1]s/cdc_raw
listen_address: 127.0.0.1
rpc_address: 127.0.0.1
storage_port: %[2]d
native_transport_port: %[3]d
seed_provider:
    - class_name: org.apache.cassandra.locator.SimpleSeedProvider
      parameters:
          - seeds: "127.0.0.1:%[2]d"
`, s.dir, storage, s.port)
	file := filepath.Join(s.dir, "cassandra.yaml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	jmx := strconv.Itoa(testhost.FreePort(t))
	args := append(cassandraModules(), "-Xms256m", "-Xmx256m", "-Dcassandra.config=file://"+file,
		"-Dcassandra.storagedir="+s.dir, "-Dcassandra.jmx.local.port="+jmx, "-cp", jars, cassandraClass)
	s.start(t, java, args...)
	s.instanceName = "cassandra" + strconv.Itoa(s.port)
	// nodetool as its script starts it, told the port; stopped, so that it is still there.
	nodetool := s.helper(t, nil, java, append(cassandraModules(), "-cp", jars, "org.apache.cassandra.tools.NodeTool",
		"-p", jmx, "status")...)
	if err := syscall.Kill(nodetool, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	h := host.New("/")
	i := waitForInstance(t, h, s)
	if i.Engine != engine.Cassandra || i.Name() != s.instanceName || i.Port != s.port || i.Config != file ||
		i.DataDir != s.dir || i.User != s.account.Username || !slices.Contains(i.Ports, s.port) {
		t.Errorf("found %q, port %d of %v, configuration %q, data directory %q, user %q", i.Name(), i.Port, i.Ports,
			i.Config, i.DataDir, i.User)
	}
	if !i.Matches(policy.Match{Engine: engine.Cassandra, Port: strconv.Itoa(s.port), DataDir: i.DataDir}) {
		t.Error("the instance does not match its own keys")
	}
	checkEngine(t, i)
	if !slices.ContainsFunc(i.Helpers, func(x engine.Helper) bool {
		return x.ID.PID == nodetool && x.Kind == engine.HelperTool && x.Sure
	}) {
		t.Errorf("nodetool %d is not among the helpers %+v", nodetool, i.Helpers)
	}
	t.Logf("%s, evidence %q, helpers %+v", i.Name(), i.Evidence, i.Helpers)
	memory, err := h.Proc.Memory(s.pid)
	if err != nil || memory.Anon < 64<<20 {
		t.Errorf("memory %+v of a heap of 256 MiB (%v)", memory, err)
	}
}

// cassandraModules opens to Cassandra what Java 17 closes, as its own start script does.
func cassandraModules() (args []string) {
	for _, m := range []string{"java.base/jdk.internal.misc", "java.management.rmi/com.sun.jmx.remote.internal.rmi",
		"java.rmi/sun.rmi.registry", "java.rmi/sun.rmi.server", "java.rmi/sun.rmi.transport",
		"java.rmi/sun.rmi.transport.tcp", "java.sql/java.sql", "java.base/java.lang.ref",
		"jdk.unsupported/sun.misc", "jdk.compiler/com.sun.tools.javac.file", "java.base/sun.nio.ch"} {
		args = append(args, "--add-exports", m+"=ALL-UNNAMED")
	}
	for _, m := range []string{"java.base/java.lang.module", "java.base/java.net", "java.base/jdk.internal.loader",
		"java.base/jdk.internal.ref", "java.base/jdk.internal.reflect", "java.base/jdk.internal.math",
		"java.base/jdk.internal.module", "java.base/jdk.internal.util.jar", "java.base/sun.nio.ch", "java.base/java.io",
		"java.base/java.nio", "java.base/java.util", "java.base/java.util.concurrent",
		"java.base/java.util.concurrent.atomic", "java.base/java.lang", "java.base/java.math",
		"java.base/java.lang.reflect", "jdk.management/com.sun.management.internal"} {
		args = append(args, "--add-opens", m+"=ALL-UNNAMED")
	}
	return append(args, "-Djdk.attach.allowAttachSelf=true", "-Djava.io.tmpdir=/var/tmp")
}

// cassandraJars is a directory with the jars of Apache Cassandra and of what it needs, which Maven brings once.
func cassandraJars(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(rootfs.Cache, "cassandra-"+cassandraVersion)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir
	}
	mvn := testhost.Program(t, "maven", "/usr/bin/mvn")
	if err := os.MkdirAll(rootfs.Cache, 0o755); err != nil {
		t.Fatal(err)
	}
	work := t.TempDir()
	pom := filepath.Join(work, "pom.xml")
	text := "<project><modelVersion>4.0.0</modelVersion><groupId>bulkhead</groupId><artifactId>jars</artifactId>" +
		"<version>1</version><dependencies><dependency><groupId>org.apache.cassandra</groupId>" +
		"<artifactId>cassandra-all</artifactId><version>" + cassandraVersion +
		"</version></dependency></dependencies></project>"
	if err := os.WriteFile(pom, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	partial := dir + ".partial"
	cmd := exec.Command(mvn, "--batch-mode", "--quiet", "--file", pom, "dependency:copy-dependencies",
		"-DoutputDirectory="+partial)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("bring the jars of Cassandra: %v\n%s", err, strings.TrimSpace(string(out)))
	}
	if err := os.Rename(partial, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}
