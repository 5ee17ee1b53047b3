//go:build tools

// Package suite names what `go mod tidy` is to look at: etcd's own tests have
// no package that another module could import.
package suite

import (
	_ "go.etcd.io/etcd/tests/v3/framework"
	_ "go.etcd.io/etcd/tests/v3/robustness/validate"
)
