package testhost

import (
	"fmt"
	"os"
	"strings"
)

// init turns a copy of the test binary into a helper process before any test runs.
func init() {
	how := strings.Fields(os.Getenv(childVariable))
	if len(how) == 0 {
		return
	}
	var err error
	switch {
	case how[0] == "hold":
		err = hold(os.Stdin, os.Stdout)
	case len(how) == 2:
		err = generate(how[0], how[1], os.Stdin, os.Stdout)
	default:
		err = fmt.Errorf("unknown: %q", how)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "helper process %q: %v\n", how, err)
		os.Exit(1)
	}
	os.Exit(0)
}
