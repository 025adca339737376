//go:build root

package zfslayout

import "bulkhead/internal/steprecord"

func init() { eachStep = steprecord.Crash("BULKHEAD_TEST_LAYOUT", eachStep) }
