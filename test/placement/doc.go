// Package placement measures how soon processes are placed, and at what CPU time, beside libcgroup's daemon with the
// same rule: `make bench-placement`.
package placement
