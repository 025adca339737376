//go:build root

package blockdev_test

import (
	"testing"

	"bulkhead/internal/change/conformance"
	"bulkhead/internal/host"
	"bulkhead/internal/linux/blockdev"
	"bulkhead/internal/testhost"
)

// The queue of a disk of the test's own, on the kernel.
func TestQueuesOnTheKernel(t *testing.T) {
	_, number := testhost.LoopDevice(t, 16<<20)
	queues := blockdev.Queues{Block: host.New("/").Block}
	now, err := queues.Scheduler(number)
	if err != nil {
		t.Fatal(err)
	}
	other := "none"
	if now == other {
		other = "mq-deadline"
	}
	conformance.Run(t, conformance.Case{
		Actuator: queues, Target: blockdev.QueueTarget(number, blockdev.QueueScheduler),
		Values: []string{other}, Refused: "no-such-scheduler",
		Gone: blockdev.QueueTarget("7:1048575", blockdev.QueueScheduler).Addr,
	})
}
