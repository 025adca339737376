//go:build root

package zfsclone

import "bulkhead/internal/steprecord"

func init() { eachStep = steprecord.Crash("BULKHEAD_TEST_CLONE", eachStep) }
