package connstring

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout returns a dialer's control function that lets a connection fail when sent
// bytes are not acknowledged for this long: by default, TCP sends them again for a quarter
// of an hour.
func userTimeout(after time.Duration) func(network, address string, c syscall.RawConn) error {
	return func(network, _ string, c syscall.RawConn) error {
		if network == "unix" {
			return nil
		}
		// A kernel without the option is no reason not to connect.
		return c.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(after.Milliseconds()))
		})
	}
}
