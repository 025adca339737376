// Package migrate holds imports and exports to the files that hosts have: cgconfig.conf and cgconfig.d, cgrules.conf
// and cgrules.d, slices and services of systemd.
//
// Its tests take a directory of such files, and without one those in testdata, each written after the shape of
// published ones. Each set of files is imported; the policy is checked, exported in every form and imported again,
// and each parameter, rule and setting is traced to the policy or to what the import said. As root on a host with
// cgroup v1, the policy is planned, too, and libcgroup's own parser loads source and export below groups of the
// test's own, which are then compared file by file.
//
//	MIGRATE=/etc go test ./test/migrate
//	MIGRATE=/etc scripts/test-root test/migrate
package migrate
