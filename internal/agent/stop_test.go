package agent

import (
	"context"
	"errors"
	"testing"
	"time"

	"bulkhead/internal/api"
	"bulkhead/internal/cgroup"
	"bulkhead/internal/cgroup/cgroupfake"
	"bulkhead/internal/journal"
	"bulkhead/internal/journal/statedir"
)

// jobsOf400 is a group whose memory is limited, with a process in it that holds 100 MiB.
func jobsOf400(t *testing.T) *modelSite {
	t.Helper()
	s := newModelSite(t)
	s.run(nil)
	s.apply("  jobs: {role: helper, match: [{exe: backup}], memory: {max: 400MiB}}\n")
	pid := s.start("/usr/bin/backup all")
	s.until("the process to be placed", func() bool { return s.kernel.Membership(pid)["memory"] == "/bulkhead.jobs" })
	s.must(s.kernel.Charge(pid, cgroupfake.Anonymous, 100<<20))
	return s
}

// lowering asks for a limit that waits for memory to fall, and gives what comes of it once that is under way.
func (s *modelSite) lowering() (answer <-chan error) {
	s.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := s.client.Do(context.WithoutCancel(s.t.Context()), api.Request{Verb: "set",
			Assign: []string{"jobs:memory.max=60MiB"}, Force: true, Reason: "test"})
		done <- err
	}()
	s.until("the set", func() bool {
		p, pending := s.control.Store.Pending()
		return pending && p.Verb == "set"
	})
	return done
}

func (s *modelSite) memory() string {
	s.t.Helper()
	text, err := s.kernel.Tree.Read(cgroup.Dir{Hierarchy: "memory", Path: "/bulkhead.jobs"}.File(
		"memory.limit_in_bytes"))
	s.must(err)
	return text
}

// What is under way for somebody who asked over the socket is undone when the agent ends, before it lets go of the
// lock.
func TestModelEndsWithWhatWasAskedUndone(t *testing.T) {
	s := jobsOf400(t)
	answer := s.lowering()
	begun := time.Now()
	s.stop()
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("it ends after %s", took)
	}
	if err := <-answer; err == nil {
		t.Error("who asked is told that it is done")
	}
	store, err := journal.Open(s.state, journal.Options{})
	s.must(err)
	defer store.Close()
	if p, pending := store.Pending(); pending {
		t.Errorf("left half done: %+v", p)
	}
	if got := s.memory(); got != "419430400" {
		t.Errorf("the limit is %s", got)
	}
}

// An agent that ends before what it was asked for is undone says so, and nobody else gets the lock meanwhile.
func TestModelKeepsTheLockOfWhatGoesOn(t *testing.T) {
	s := newModelSite(t)
	s.run(nil)
	s.apply(jobs)
	s.stop()
	s.stopTime = 50 * time.Millisecond
	s.run(nil)
	held, hold := make(chan struct{}), make(chan struct{})
	s.kernel.Intercept(func(o cgroupfake.Operation) error {
		s.refresh()
		if o.Op == "write" && o.File.Name == "pids.max" {
			close(held)
			<-hold
		}
		return nil
	})
	answer := make(chan error, 1)
	go func() {
		_, err := s.client.Do(context.WithoutCancel(t.Context()), api.Request{Verb: "set",
			Assign: []string{"jobs:tasks=60"}})
		answer <- err
	}()
	<-held
	s.kernel.Intercept(func(cgroupfake.Operation) error { s.refresh(); return nil })
	s.cancel()
	if err := <-s.ended; !errors.Is(err, ErrUnfinished) {
		t.Errorf("the agent ended with %v", err)
	}
	other, err := journal.Open(s.state, journal.Options{})
	s.must(err)
	defer other.Close()
	var locked *statedir.LockedError
	if _, err := other.Lock("test", "test"); !errors.As(err, &locked) || locked.Holder.Verb != "set" {
		t.Errorf("somebody else gets the lock: %v", err)
	}
	close(hold)
	s.until("the lock", func() bool {
		lock, err := other.Lock("test", "test")
		if err == nil {
			lock.Release()
		}
		return err == nil
	})
	<-answer
	if p, pending := other.Pending(); pending {
		t.Errorf("left half done: %+v", p)
	}
	s.must(s.control.Close())
}
