// Package examples holds policies to start from. The docs show them, and tests apply them.
package examples

import "embed"

// Policies are the files of this directory.
//
//go:embed *.yaml
var Policies embed.FS
