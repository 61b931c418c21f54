//go:build !linux

package connstring

import (
	"syscall"
	"time"
)

// userTimeout does nothing where there is no such option.
func userTimeout(time.Duration) func(network, address string, c syscall.RawConn) error { return nil }
