package parse_test

import (
	"fmt"

	"bulkhead/internal/policy"
	"bulkhead/internal/policy/parse"
)

func ExamplePolicy() {
	text := "version: 1\ngroups:\n  reports: {match: [{user: report}], cpu: {limit: 150%}, memory: {max: 8GiB}}\n"
	p, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: text}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, s := range p.Groups[0].Settings {
		fmt.Println(s)
	}
	// Output:
	// cpu.limit=1.5
	// memory.max=8GiB
}

// Problems have a place, a caret and a hint.
func ExamplePolicy_problems() {
	text := "version: 1\ngroups:\n  reports: {memory: {max: 48G}}\n"
	_, err := parse.Policy([]policy.Source{{Path: "policy.yaml", Text: text}})
	fmt.Println(err)
	// Output:
	// policy.yaml:3:27: memory.max: 48G could mean 48GB (48000000000 bytes) or 48GiB (51539607552 bytes)
	//       reports: {memory: {max: 48G}}
	//                               ^
	// hint: write 48GB or 48GiB
}

func ExampleAssignment() {
	group, s, err := parse.Assignment("reports:io.read.bandwidth=50MB/s", "/data")
	fmt.Println(group, s, err)
	// Output: reports io.read.bandwidth=50MB/s on /data <nil>
}
