//go:build tools

// The YAML test suite is read from the test data of this module.
package main

import _ "github.com/goccy/go-yaml"
