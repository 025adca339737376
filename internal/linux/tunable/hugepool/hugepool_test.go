package hugepool

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bulkhead/internal/linux/linuxtest"
	"bulkhead/internal/linux/sysroot"
)

// kernel is one that gives no more than some pages, and more once it has put memory together.
type kernel struct {
	t         *testing.T
	dir       string
	gives     int64 // at most
	compacted int64 // more at each time that memory is put together
	written   []string
}

func newKernel(t *testing.T, gives, compacted int64) *kernel {
	t.Helper()
	k := &kernel{t: t, dir: t.TempDir(), gives: gives, compacted: compacted}
	k.put("/proc/meminfo", "MemTotal: 10240000 kB\nMemAvailable: 5120000 kB\nHugepagesize: 2048 kB\n")
	k.put("/proc/sys/vm/compact_memory", "")
	k.put(sysctlFile, "10\n")
	return k
}

func (k *kernel) put(file, text string) {
	k.t.Helper()
	at := filepath.Join(k.dir, file)
	if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o600)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kernel) pool(file string) Pool {
	return Pool{Root: sysroot.New(k.dir), File: file, Write: func(file, value string) error {
		k.written = append(k.written, filepath.Base(file)+"="+value)
		if strings.Contains(file, "compact") {
			k.gives += k.compacted
			return nil
		}
		n, err := strconv.ParseInt(value, 10, 64)
		k.put(file, strconv.FormatInt(min(n, k.gives), 10)+"\n")
		return err
	}}
}

// A pool grows in steps; the kernel is asked to put memory together when it gave too few, and only then.
func TestGrow(t *testing.T) {
	k := newKernel(t, 1000, 0)
	if err := k.pool(sysctlFile).Set(t.Context(), 810); err != nil {
		t.Fatal(err)
	}
	if want := "nr_hugepages=110 nr_hugepages=210"; !strings.HasPrefix(strings.Join(k.written, " "), want) ||
		len(k.written) != steps {
		t.Errorf("written %q", k.written)
	}
	k = newKernel(t, 100, 60)
	if err := k.pool(sysctlFile).Set(t.Context(), 150); err != nil ||
		!slices.Contains(k.written, "compact_memory=1") {
		t.Errorf("after memory was put together: %v, %q", err, k.written)
	}
	k = newKernel(t, 100, 0)
	var short *ShortError
	if err := k.pool(sysctlFile).Set(t.Context(), 150); !errors.As(err, &short) || short.Got != 100 ||
		short.Want != 150 || !strings.Contains(err.Error(), "--at-boot") {
		t.Errorf("a kernel that gives no more: %v, %q", err, k.written)
	}
	k = newKernel(t, 5000, 0)
	if err := k.pool(sysctlFile).Set(t.Context(), 2011); err == nil || !strings.Contains(err.Error(), "tenth") ||
		len(k.written) > 0 {
		t.Errorf("more than leaves a tenth of the memory: %v, %q", err, k.written)
	}
	const most = 1 << 62 // as bytes no number holds it
	if err := k.pool(sysctlFile).Set(t.Context(), most); err == nil || len(k.written) > 0 {
		t.Errorf("more than there can be: %v, %q", err, k.written)
	}
	k = newKernel(t, 100, 0)
	if err := k.pool(sysctlFile).Set(t.Context(), 3); err != nil ||
		!slices.Equal(k.written, []string{"nr_hugepages=3"}) {
		t.Errorf("smaller: %v, %q", err, k.written)
	}
}

// The pool of a node is read without its surplus pages, and memory of that node is put together.
func TestNode(t *testing.T) {
	file := OnNode(1, 2<<20)
	k := newKernel(t, 20, 30)
	k.put(file, "12\n")
	k.put(filepath.Join(filepath.Dir(file), "surplus_hugepages"), "5\n")
	k.put("/sys/devices/system/node/node1/compact", "")
	p := k.pool(file)
	if n, err := Read(p.Root, file); err != nil || n != 7 || !Is(file) || Is("/sys/kernel/mm/ksm/run") {
		t.Errorf("%d pages, %v", n, err)
	}
	k.put(filepath.Join(filepath.Dir(file), "surplus_hugepages"), "0\n")
	meminfo := func(free, cached int64) {
		k.written = nil
		k.put("/sys/devices/system/node/node1/meminfo", fmt.Sprintf("Node 1 MemTotal: 512000 kB\n"+
			"Node 1 MemFree: %d kB\nNode 1 Inactive(file): %d kB\n", free, cached))
	}
	meminfo(51200+28*2048-1, 0)
	if err := p.Set(t.Context(), 40); err == nil || !strings.Contains(err.Error(), "of node1 are available") ||
		len(k.written) > 0 {
		t.Errorf("more than leaves a tenth of the node: %v, %q", err, k.written)
	}
	meminfo(51200, 28*2048)
	if err := p.Set(t.Context(), 40); err != nil || !slices.Contains(k.written, "compact=1") {
		t.Errorf("%v, %q", err, k.written)
	}
}

// Whether a pool fits is told before anything is set.
func TestRoom(t *testing.T) {
	dir := linuxtest.Files(t, map[string]string{"proc/meminfo": "MemTotal: 2000000 kB\nMemAvailable: 1200000 kB\n" +
		"Hugepagesize: 2048 kB\n", "proc/sys/vm/nr_hugepages": "10\n"}, 0o644)
	root := sysroot.New(dir)
	for want, fits := range map[int64]bool{0: true, 10: true, 400: true, 1189: false} {
		if err := Room(root, Sysctl, want); (err == nil) != fits {
			t.Errorf("%d pages: %v", want, err)
		}
	}
}
