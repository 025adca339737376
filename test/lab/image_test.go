//go:build lab

package lab

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// image is what a machine boots from.
type image struct{ root, kernel, initrd string }

// cache is the directory of the images.
func cache(t *testing.T) string {
	t.Helper()
	base, err := os.UserCacheDir()
	must(t, err)
	dir := filepath.Join(base, "bulkhead-lab")
	must(t, os.MkdirAll(dir, 0o755))
	return dir
}

// machines is how many may run at a time: each more than two on a two-core host spoils the measurements of the others.
const machines = 2

// slot waits until fewer than that many run, and holds a place until the test ends.
func slot(t *testing.T, cache string) {
	t.Helper()
	var names []string
	for i := range machines {
		names = append(names, fmt.Sprintf("machine%d.lock", i))
	}
	lock(t, cache, names...)
}

// lock takes the first of several lock files that is free, waiting for it, and gives what lets go of it. The end of the
// test does so too.
func lock(t *testing.T, cache string, names ...string) func() error {
	t.Helper()
	for waits := false; ; waits = true {
		for _, name := range names {
			file, err := os.OpenFile(filepath.Join(cache, name), os.O_CREATE|os.O_RDWR, 0o600)
			must(t, err)
			if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				t.Cleanup(func() { file.Close() })
				return file.Close
			}
			file.Close()
		}
		if !waits {
			t.Logf("waiting for another run of the lab to let go of %s", strings.Join(names, " or "))
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("wait for %q: %v", names, t.Context().Err())
		case <-time.After(time.Second):
		}
	}
}

// recipe is the directory from which every image is built: a list of packages, hooks for mmdebstrap(1), and PID 1 of a
// machine without systemd.
const recipe = "recipe"

// build gives the image of a mode: that of its release of Debian, or one of its own with more packages. It is kept in
// the cache under the hash of the recipe; packages are as old as their image: remove it for newer ones.
func build(t *testing.T, cache string, m Mode) image {
	t.Helper()
	release, name := m.Release, m.Image()
	dir := filepath.Join(cache, name+"-"+hash(t, recipe))
	if m.Extra != "" {
		dir += "-" + hash(t, m.Extra)
	}
	img := image{filepath.Join(dir, "root.img"), filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd")}
	defer lock(t, cache, name+".lock")()
	if _, err := os.Stat(dir); err == nil {
		return img
	}
	t.Logf("building the image of %s (a few minutes)", name)
	start := time.Now()
	work, err := os.MkdirTemp(cache, "build-")
	must(t, err)
	defer os.RemoveAll(work)
	packages, err := os.ReadFile(filepath.Join(recipe, "packages"))
	must(t, err)
	components := "main"
	hooks := []string{"--essential-hook=" + absolute(t, recipe, "hook"),
		"--customize-hook=" + absolute(t, recipe, "customize")}
	if m.Extra != "" {
		more, err := os.ReadFile(filepath.Join(m.Extra, "packages"))
		must(t, err)
		packages, components = append(packages, more...), "main,contrib"
		hooks = append(hooks, "--customize-hook="+absolute(t, m.Extra, "customize"))
	}
	root, out := filepath.Join(work, "root"), filepath.Join(work, "out")
	debootstrap := slices.Concat([]string{"--quiet", "--variant=minbase",
		"--components=" + components,
		"--include=" + strings.Join(strings.Fields(string(packages)), ","),
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*"}, hooks, []string{release, root})
	if err := try(t, "mmdebstrap", debootstrap...); err != nil { // mirrors have bad moments
		t.Logf("once more: %v", err)
		must(t, os.RemoveAll(root))
		run(t, "mmdebstrap", debootstrap...)
	}
	must(t, os.Mkdir(out, 0o755))
	for pattern, name := range map[string]string{"vmlinuz-*": "vmlinuz", "initrd.img-*": "initrd"} {
		found, err := filepath.Glob(filepath.Join(root, "boot", pattern))
		if err != nil || len(found) != 1 {
			t.Fatalf("find /boot/%s in the image: %q, %v", pattern, found, err)
		}
		install(t, found[0], filepath.Join(out, name))
	}
	run(t, "mke2fs", "-q", "-t", "ext4", "-d", root, filepath.Join(out, "root.img"), "3G")
	must(t, os.Rename(out, dir))
	t.Logf("built the image of %s in %v", name, time.Since(start).Round(time.Second))
	return img
}

// hash is of the names and contents of a recipe.
func hash(t *testing.T, recipe string) string {
	t.Helper()
	sum := sha256.New()
	entries, err := os.ReadDir(recipe) // sorted
	must(t, err)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(recipe, e.Name()))
		must(t, err)
		one := sha256.Sum256(text)
		sum.Write([]byte(e.Name() + "\x00"))
		sum.Write(one[:])
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

func install(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	must(t, err)
	must(t, os.WriteFile(to, data, 0o755))
}

func absolute(t *testing.T, elem ...string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(elem...))
	must(t, err)
	return path
}

// run runs a program to its end; its output is shown when it fails.
func run(t *testing.T, name string, args ...string) {
	t.Helper()
	must(t, try(t, name, args...))
}

// try is run for what may be tried again.
func try(t *testing.T, name string, args ...string) error {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
