package bench

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// The test binary serves as the programs that tests start.
const actAs = "BULKHEAD_BENCH_TEST_ACT_AS"

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "bench" && os.Args[2] == "hog" {
		// A hog that hogPrograms started: it is enough to be there.
		time.Sleep(time.Minute)
		return
	}
	switch os.Getenv(actAs) {
	case "":
		os.Exit(m.Run())
	case "parent":
		// Starts a child, says its pid, and waits to be killed.
		n := newNursery()
		c, err := n.start(spec{args: []string{"sleep", "60"}})
		if err != nil {
			exit(err)
		}
		fmt.Println(c.pid())
		time.Sleep(time.Minute)
	}
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
