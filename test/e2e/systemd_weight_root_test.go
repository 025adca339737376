//go:build root

package e2e

import "testing"

// On cgroup v2, and where systemd owns the tree: BFQ, which comes as a module, and iocost with a model, over a
// daemon-reload; iocost is held to what two groups get of a disk that both want.
func TestWeightsInTheLab(t *testing.T) {
	needLab(t, "TestWeightsInTheLab")
	number := numberOf(t, spareOne)
	t.Run("BFQ", func(t *testing.T) {
		// What each gets is measured by TestWeightByBFQ: here the CPUs are slower than the disk, and there is nothing
		// to share out.
		newSite(t).weigh(t, spareOne, number, "", "BFQ becomes its scheduler in place of", 0)
	})
	t.Run("iocost", func(t *testing.T) {
		if !onV2(t) {
			t.Skip("iocost is of cgroup v2")
		}
		// Less than the disk can do, so that it is iocost which decides.
		const model = "io: [{on: " + spareOne +
			", model: {read: {bandwidth: 40MB/s, sequential: 400, random: 300}, write: {bandwidth: 40MB/s, " +
			"sequential: 400, random: 300}}}]"
		newSite(t).weigh(t, spareOne, number, model, "iocost weighs there, as host.io has a model of the disk", 0.7)
	})
}
