//go:build root

// Package packages holds what `make packages` makes: deb and rpm.
package packages

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"bulkhead/internal/testhost"
)

// top is the repository as seen from here.
const top = "../.."

// made is a directory for packages, which goes at the end.
var made string

func TestMain(m *testing.M) {
	if err := testhost.SetSurroundings(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "bulkhead-packages-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	made = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// pack makes packages of a version, once, and gives their directory. Both architectures take long: only this one's,
// unless LONG=1.
func pack(t *testing.T, version string) string {
	t.Helper()
	return once(t, version, "rpm deb")
}

// upgrade is the rpm of the version that follows. No test needs its deb.
func upgrade(t *testing.T) string {
	t.Helper()
	return find(t, once(t, "v0.0.2", "rpm"), "rpm")
}

var making sync.Mutex // by once

func once(t *testing.T, version, kinds string) string {
	t.Helper()
	making.Lock()
	defer making.Unlock()
	dir := filepath.Join(made, version)
	if _, err := os.Stat(dir); err != nil {
		makePackages(t, version, dir, kinds)
	}
	return dir
}

func makePackages(t *testing.T, version, dir, kinds string) {
	t.Helper()
	arches := "amd64"
	if os.Getenv("LONG") != "" {
		arches = "amd64 arm64"
	}
	cmd := exec.Command("make", "--no-print-directory", "packages", "VERSION="+version, "OUT="+dir, "ARCHES="+arches)
	cmd.Dir, cmd.Env = top, append(os.Environ(), "KINDS="+kinds)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make packages: %v\n%s", err, out)
	}
}

const version = "v0.0.1"

// find gives the package of a kind for this machine.
func find(t *testing.T, dir, kind string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*amd64.deb"))
	if kind == "rpm" {
		files, err = filepath.Glob(filepath.Join(dir, "*x86_64.rpm"))
	}
	if err != nil || len(files) != 1 {
		t.Fatalf("packages of kind %s below %s: %q, %v", kind, dir, files, err)
	}
	return files[0]
}

// do runs a program that is to succeed.
func do(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// The same commit gives the same bytes.
func TestSameBytesTwice(t *testing.T) {
	if os.Getenv("LONG") == "" {
		t.Skip("makes all packages again: LONG=1")
	}
	first, second := pack(t, version), filepath.Join(made, "again")
	makePackages(t, version, second, "rpm deb")
	sums := func(dir string) (all []string) {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, fmt.Sprintf("%s %x", filepath.Base(file), sha256.Sum256(text)))
		}
		return all
	}
	if a, b := sums(first), sums(second); !slices.Equal(a, b) || len(a) < 2 {
		t.Errorf("first:\n%s\nthen:\n%s", strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
}

// want are files that both kinds of packages have, with their modes.
var want = map[string]string{
	"/usr/bin/bulkhead":                                              "-rwxr-xr-x",
	"/usr/lib/systemd/system/bulkhead.service":                       "-rw-r--r--",
	"/usr/lib/systemd/system/bulkhead-before@.service":               "-rw-r--r--",
	"/usr/lib/systemd/system/postgresql@.service.d/10-bulkhead.conf": "-rw-r--r--",
	"/usr/share/bash-completion/completions/bulkhead":                "-rw-r--r--",
	"/usr/share/fish/vendor_completions.d/bulkhead.fish":             "-rw-r--r--",
	"/usr/share/man/man8/bulkhead.8.gz":                              "-rw-r--r--",
	"/usr/share/man/man8/bulkhead-apply.8.gz":                        "-rw-r--r--",
	"/usr/share/man/man5/bulkhead-policy.5.gz":                       "-rw-r--r--",
	"/usr/share/doc/bulkhead/licences.txt":                           "-rw-r--r--",
	"/usr/share/doc/bulkhead/bulkhead.spdx.json":                     "-rw-r--r--",
	"/usr/share/doc/bulkhead/copyright":                              "-rw-r--r--",
	"/usr/share/doc/bulkhead/install.md":                             "-rw-r--r--",
	"/usr/share/bulkhead/removed":                                    "-rw-r--r--",
	"/etc/bulkhead/policy.yaml":                                      "-rw-r--r--",
	"/var/lib/bulkhead":                                              "drwx------",
}

func TestDebFiles(t *testing.T) {
	deb := find(t, pack(t, version), "deb")
	modes := map[string]string{}
	for line := range strings.Lines(do(t, "dpkg-deb", "--contents", deb)) {
		f := strings.Fields(line)
		if f[1] != "root/root" {
			t.Errorf("%s", line)
		}
		modes[strings.TrimSuffix(strings.TrimPrefix(f[5], "."), "/")] = f[0]
	}
	for _, more := range []map[string]string{want, {"/etc/init.d/bulkhead": "-rwxr-xr-x",
		"/etc/default/bulkhead": "-rw-r--r--", "/usr/share/zsh/vendor-completions/_bulkhead": "-rw-r--r--"}} {
		for name, mode := range more {
			if modes[name] != mode {
				t.Errorf("%s has mode %q, want %q", name, modes[name], mode)
			}
		}
	}
	dir := t.TempDir()
	do(t, "dpkg-deb", "--control", deb, dir)
	conffiles, err := os.ReadFile(filepath.Join(dir, "conffiles"))
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Fields(string(conffiles))
	slices.Sort(all)
	if got := strings.Join(all, " "); got !=
		"/etc/bulkhead/policy.yaml /etc/default/bulkhead /etc/init.d/bulkhead" {
		t.Errorf("conffiles are %s", got)
	}
}

func TestRPMFiles(t *testing.T) {
	file := find(t, pack(t, version), "rpm")
	modes := map[string]string{}
	list := do(t, "rpm", "-qp", "--queryformat", "[%{FILEMODES:perms} %{FILENAMES}\n]", file)
	for line := range strings.Lines(list) {
		mode, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		modes[name] = mode
	}
	for _, more := range []map[string]string{want, {"/etc/sysconfig/bulkhead": "-rw-r--r--",
		"/usr/share/zsh/site-functions/_bulkhead": "-rw-r--r--"}} {
		for name, mode := range more {
			if modes[name] != mode {
				t.Errorf("%s has mode %q, want %q", name, modes[name], mode)
			}
		}
	}
	if _, there := modes["/etc/init.d/bulkhead"]; there {
		t.Error("the init script is there: hosts with rpm and a kernel that is new enough have systemd")
	}
	if got := strings.Join(strings.Fields(do(t, "rpm", "-qp", "--configfiles", file)), " "); got !=
		"/etc/bulkhead/policy.yaml /etc/sysconfig/bulkhead" {
		t.Errorf("config files are %s", got)
	}
}

// inside reads a file of a deb.
func inside(t *testing.T, deb, name string) []byte {
	t.Helper()
	out, err := exec.Command("dpkg-deb", "--fsys-tarfile", deb).Output()
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(bytes.NewReader(out)); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if strings.TrimPrefix(h.Name, ".") == name {
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return text
		}
	}
}

// What is linked is named, with its licence and the text of that.
func TestBillOfMaterials(t *testing.T) {
	deb := find(t, pack(t, version), "deb")
	var bill struct {
		Packages []struct{ Name, VersionInfo, LicenseDeclared string }
	}
	if err := json.Unmarshal(inside(t, deb, "/usr/share/doc/bulkhead/bulkhead.spdx.json"), &bill); err != nil {
		t.Fatal(err)
	}
	licences := string(inside(t, deb, "/usr/share/doc/bulkhead/licences.txt"))
	got := map[string]string{}
	for _, p := range bill.Packages {
		got[p.Name] = p.LicenseDeclared
		line := "  " + p.Name + " " + p.VersionInfo + " (" + p.LicenseDeclared + ")\n"
		if p.Name != "bulkhead" && !strings.Contains(licences, line) {
			t.Errorf("licences.txt does not name %s %s", p.Name, p.VersionInfo)
		}
	}
	for name, licence := range map[string]string{"bulkhead": "Apache-2.0", "std": "BSD-3-Clause",
		"github.com/go-sql-driver/mysql": "MPL-2.0", "github.com/spf13/cobra": "Apache-2.0",
		"github.com/jackc/pgx/v5": "MIT", "github.com/redis/go-redis/v9": "BSD-2-Clause"} {
		if got[name] != licence {
			t.Errorf("the licence of %s is %q, want %q", name, got[name], licence)
		}
	}
}

// Each package holds a program for its architecture that knows its version and commit.
func TestProgramInside(t *testing.T) {
	debs, err := filepath.Glob(filepath.Join(pack(t, version), "*.deb"))
	if err != nil {
		t.Fatal(err)
	}
	for _, deb := range debs {
		arch := strings.TrimSpace(do(t, "dpkg-deb", "--field", deb, "Architecture"))
		program := inside(t, deb, "/usr/bin/bulkhead")
		f, err := elf.NewFile(bytes.NewReader(program))
		if err != nil {
			t.Fatal(err)
		}
		if want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]; f.Machine != want {
			t.Errorf("%s is for %v", deb, f.Machine)
		}
		if arch != "amd64" {
			continue
		}
		file := filepath.Join(t.TempDir(), "bulkhead")
		if err := os.WriteFile(file, program, 0o755); err != nil {
			t.Fatal(err)
		}
		if out := do(t, file, "version"); !strings.HasPrefix(out, "bulkhead "+version+" (go") {
			t.Errorf("version says %q", out)
		}
	}
}

// The changelog of the package is one that Debian's tools read.
func TestDebianChangelog(t *testing.T) {
	r, err := gzip.NewReader(bytes.NewReader(inside(t, find(t, pack(t, version), "deb"),
		"/usr/share/doc/bulkhead/changelog.gz")))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil || !strings.HasPrefix(string(text), "bulkhead (0.0.1) unstable; urgency=medium\n") {
		t.Errorf("%q, %v", text, err)
	}
}

func TestLintian(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("lintian", "--allow-root", "--no-cfg", "--fail-on", "error", "-X", "binaries/spelling",
		find(t, pack(t, version), "deb")).CombinedOutput()
	if err != nil {
		t.Errorf("lintian: %v", err)
	}
	t.Logf("lintian says\n%s", out)
}

func TestRPMLint(t *testing.T) {
	out, err := exec.Command("rpmlint", "--config", filepath.Join(top, "packaging/rpm/rpmlint.toml"),
		find(t, pack(t, version), "rpm")).CombinedOutput()
	if err != nil || !strings.Contains(string(out), " 0 errors") {
		t.Errorf("rpmlint: %v", err)
	}
	t.Logf("rpmlint says\n%s", out)
}

// Versions sort as commits follow each other, for both kinds of packages.
func TestVersionsSort(t *testing.T) {
	var before string
	for _, v := range []string{"0123abc", "v0.9.0-rc1", "v0.9.0-rc1-4-g0123abc", "v0.9.0", "v0.9.0-2-g0123abc",
		"v0.9.0-10-g0123abc", "v0.9.0-10-g0123abc-dirty", "v0.9.1", "v0.10.0"} {
		cmd := exec.Command("scripts/packages", "--version")
		cmd.Dir, cmd.Env = top, append(os.Environ(), "VERSION="+v)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", v, err)
		}
		now := strings.TrimSpace(string(out))
		if before != "" {
			do(t, "dpkg", "--compare-versions", before, "lt", now)
			less := do(t, "rpm", "--eval", fmt.Sprintf(`%%{lua:print(rpm.vercmp("%s", "%s"))}`, before, now))
			if strings.TrimSpace(less) != "-1" {
				t.Errorf("rpm: %s is not older than %s", before, now)
			}
		}
		before = now
	}
}

// architectures makes packages of a kind for both, and gives their files: amd64's and arm64's. That takes long.
func architectures(t *testing.T, kind string) (amd64, arm64 string) {
	t.Helper()
	if os.Getenv("LONG") == "" {
		t.Skip("packages for arm64 are made with LONG=1")
	}
	pattern := map[string]string{"deb": "*arm64.deb", "rpm": "*aarch64.rpm"}[kind]
	files, err := filepath.Glob(filepath.Join(pack(t, version), pattern))
	if err != nil || len(files) != 1 {
		t.Fatalf("packages of kind %s for arm64: %q, %v", kind, files, err)
	}
	return find(t, pack(t, version), kind), files[0]
}

// The packages for arm64, which nobody can start here, hold the same files as those for amd64, with the same modes and
// scripts, and a static program for arm64.
func TestArm64HoldsTheSame(t *testing.T) {
	for kind, list := range map[string][]string{
		"deb": {"sh", "-c", `dpkg-deb --contents "$0" | awk '{ print $1, $2, $6, $7, $8 }'; d=$(mktemp -d)
			dpkg-deb --control "$0" "$d"; cd "$d" && cat conffiles postinst prerm postrm; rm -r "$d"`},
		"rpm": {"rpm", "-qp", "--scripts", "--queryformat",
			"[%{FILEMODES:perms} %{FILEUSERNAME} %{FILEFLAGS:fflags} %{FILENAMES} %{FILELINKTOS}\n]"},
	} {
		t.Run(kind, func(t *testing.T) {
			amd64, arm64 := architectures(t, kind)
			ours, theirs := do(t, list[0], append(list[1:], amd64)...), do(t, list[0], append(list[1:], arm64)...)
			if ours != theirs || strings.Count(ours, "\n") < 50 {
				t.Errorf("amd64:\n%s\narm64:\n%s", ours, theirs)
			}
			dir := t.TempDir()
			if kind == "deb" {
				do(t, "dpkg-deb", "--extract", arm64, dir)
			} else {
				do(t, "rpm", "--root", dir, "--dbpath", "/var/lib/rpm", "-i", "--nodeps", "--noscripts", "--ignorearch",
					arm64)
			}
			program, err := elf.Open(filepath.Join(dir, "usr/bin/bulkhead"))
			if err != nil {
				t.Fatal(err)
			}
			defer program.Close()
			libraries, err := program.ImportedLibraries()
			if program.Machine != elf.EM_AARCH64 || program.Type != elf.ET_EXEC || len(libraries) > 0 {
				t.Errorf("the program is %v for %v, with %q, %v", program.Type, program.Machine, libraries, err)
			}
		})
	}
}
