package load

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"bulkhead/internal/bench/process"
)

// Each login answers twice, and what its shell's start takes is in the first answer.
func TestLogin(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	n := process.NewSupervisor()
	defer n.Close()
	if process.LookPath("bash") == "" {
		t.Fatal("there is no bash, which `make` itself runs with")
	}
	d := &Driver{Supervisor: n, Dir: t.TempDir()}
	o, err := loginShell.Native(t.Context(), d, time.Second, func(float64) {})
	if err != nil || o.Transactions != 4 || countOf(o) != 4 || o.Figures()["longest"] <= 0 {
		t.Errorf("%d answers, %v, %v", o.Transactions, o.Histogram, err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "bash"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if _, err := loginShell.Native(t.Context(), d, time.Second, func(float64) {}); err == nil {
		t.Error("a shell that ends at once answered")
	}
}

// A sleep that ended is late by more than nothing, and by less than it took.
func TestSleeper(t *testing.T) {
	o, err := sleeper.Native(t.Context(), nil, 100*time.Millisecond, func(float64) {})
	if err != nil || o.Transactions < 1 || o.Transactions > 100 || countOf(o) != o.Transactions ||
		o.Figures()["p50"] > 100 {
		t.Errorf("%d sleeps, %v, %v", o.Transactions, o.Histogram, err)
	}
}
