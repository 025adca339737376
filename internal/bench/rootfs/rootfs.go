// Package rootfs makes root directories with newer releases of database servers than the host's, from packages of
// Debian's unstable suite, and keeps them in a cache. No file of the host is changed, and no script of a package runs.
//
// The servers are ordinary programs of the host, in no container and no chroot(2): patchelf(1) sets their dynamic
// loader and the path of their libraries to those of the root directory, so files, users and sockets are the host's.
package rootfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"bulkhead/internal/bench/process"
)

// Cache is where root directories are kept, one for each release. [Most] bounds each; to delete one is to remove its
// directory while no proof runs.
const Cache = "/var/cache/bulkhead/engines"

// Most is how many bytes a root directory may have.
const Most = 768 << 20

// makes is how long the download and the extraction of a root directory may take.
const makes = 15 * time.Minute

// release is what a root directory is made of.
type release struct {
	packages []string
	// programs are paths below the root directory, by the name that the bench calls them.
	programs map[string]string
}

const postgres18 = "usr/lib/postgresql/18/bin/"

// releases are by the name of a scenario's engine.
var releases = map[string]release{
	"mysql@9.7": {[]string{"mysql-server-core", "mysql-client-core"}, map[string]string{
		"mysqld": "usr/sbin/mysqld", "mariadb": "usr/bin/mysql", "mysqldump": "usr/bin/mysqldump",
		"mysqladmin": "usr/bin/mysqladmin",
	}},
	"postgresql@18": {[]string{"postgresql-18", "postgresql-client-18"}, map[string]string{
		"postgres": postgres18 + "postgres", "initdb": postgres18 + "initdb", "psql": postgres18 + "psql",
		"pg_basebackup": postgres18 + "pg_basebackup", "pg_dump": postgres18 + "pg_dump",
	}},
	"valkey@9": {[]string{"valkey-server", "valkey-tools"}, map[string]string{
		"redis-server": "usr/bin/valkey-server", "redis-cli": "usr/bin/valkey-cli",
	}},
}

// Maker is what makes a root directory; one that is there needs nothing.
func Maker(name string) []process.Program {
	if _, err := os.Stat(Dir(name)); err == nil {
		return nil
	}
	return []process.Program{{Name: "mmdebstrap", Package: "mmdebstrap"}}
}

// Dir is the root directory of a release, such as "mysql@9.7".
func Dir(name string) string { return filepath.Join(Cache, strings.ReplaceAll(name, "@", "-")) }

// Programs are those of a release, whose root directory is made when it is not there. Several may ask at once: one
// makes it.
func Programs(ctx context.Context, name string) (found process.Programs, err error) {
	r, known := releases[name]
	if !known {
		return nil, fmt.Errorf("make the root directory of %q: no such release", name)
	}
	dir := Dir(name)
	if err := os.MkdirAll(Cache, 0o755); err != nil {
		return nil, fmt.Errorf("make the cache of engines: %w", err)
	}
	unlock, err := lock(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		if err := r.build(ctx, dir); err != nil {
			return nil, &process.RequirementError{
				Reason: fmt.Sprintf("the root directory of %s cannot be made: %v", name, err),
				Hint:   "its packages are of Debian's unstable suite: is a mirror in reach? The next run tries again",
			}
		}
	}
	found = process.Programs{}
	for key, path := range r.programs {
		found[key] = filepath.Join(dir, path)
		if _, err := os.Stat(found[key]); err != nil {
			return nil, &process.RequirementError{Reason: fmt.Sprintf("the root directory of %s lacks a program: %v",
				name, err), Hint: "rm -rf " + dir + ", and it is made anew"}
		}
	}
	return found, nil
}

// lock lets one process at a time make root directories.
func lock(ctx context.Context) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(Cache, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the cache of engines: %w", err)
	}
	for {
		switch err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
		case err == nil:
			return f.Close, nil
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("lock the cache of engines: %w", err), f.Close())
		}
		if process.Sleep(ctx, 100*time.Millisecond); ctx.Err() != nil {
			return nil, errors.Join(context.Cause(ctx), f.Close())
		}
	}
}

// Said is where a root directory is, how much it holds and how to delete it, for people.
func Said(name string) string {
	dir := Dir(name)
	size, err := bytesOf(dir)
	if err != nil {
		return fmt.Sprintf("the root directory of %s: %v", name, err)
	}
	return fmt.Sprintf("%s is in %s (%d MiB), which stays: rm -r %s deletes it", name, dir, size>>20, dir)
}

// build makes a root directory beside its place and moves it there when it is whole.
func (r release) build(ctx context.Context, dir string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, makes)
	defer cancel()
	// Not in the network namespace of a proof.
	n := process.NewSupervisor()
	defer func() { err = errors.Join(err, n.Close()) }()
	root := dir + ".new" // what a killed run left of it goes
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(root))
		}
	}()
	path := process.LookPath("mmdebstrap")
	if path == "" {
		return errors.New("mmdebstrap is not installed")
	}
	// Of root, mode unshare has its mounts in a namespace of its own: none is left when it is killed.
	if err := run(ctx, n, path, "--quiet", "--mode=unshare", "--variant=extract", "--include=base-files,patchelf,"+
		strings.Join(r.packages, ","),
		// The release file is as old as its mirror, whatever it says that it is good for.
		"--aptopt=Acquire::Check-Valid-Until \"false\"", "--aptopt=Acquire::Retries \"3\"",
		"--dpkgopt=path-exclude=/usr/share/man/*", "--dpkgopt=path-exclude=/usr/share/locale/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*", "unstable", root); err != nil {
		return err
	}
	if err := r.fitted(ctx, n, root, dir); err != nil {
		return err
	}
	size, err := bytesOf(root)
	if err != nil {
		return err
	}
	if size > Most {
		return fmt.Errorf("it has %d MiB, more than %d", size>>20, Most>>20)
	}
	return os.Rename(root, dir)
}

// fitted makes the programs run from the place where the root directory is to be.
func (r release) fitted(ctx context.Context, n *process.Supervisor, root, dir string) error {
	loaders, err := filepath.Glob(filepath.Join(root, "usr/lib/*-linux-gnu/ld-linux*.so.*"))
	if err != nil || len(loaders) != 1 {
		return fmt.Errorf("find the dynamic loader: %q, %w", loaders, err)
	}
	libraries := filepath.Dir(loaders[0])
	final := dir + strings.TrimPrefix(libraries, root)
	for _, path := range r.programs {
		file, err := filepath.EvalSymlinks(filepath.Join(root, path))
		if err != nil {
			return err
		}
		// DT_RPATH and not DT_RUNPATH: libraries find theirs by it, too.
		if err := run(ctx, n, loaders[0], "--library-path", libraries, filepath.Join(root, "usr/bin/patchelf"),
			"--set-interpreter", filepath.Join(final, filepath.Base(loaders[0])), "--force-rpath", "--set-rpath", final,
			file); err != nil {
			return err
		}
	}
	return nil
}

func run(ctx context.Context, n *process.Supervisor, args ...string) error {
	var out bytes.Buffer
	if err := n.Run(ctx, process.Spec{Args: args, Stdout: &out, Stderr: &out}); err != nil {
		return fmt.Errorf("%s: %w\n%s", filepath.Base(args[0]), err, process.LastLines(out.String(), 10))
	}
	return nil
}

// bytesOf is what the files of a directory take.
func bytesOf(dir string) (size int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size += info.Size()
		}
		return err
	})
	return size, err
}
