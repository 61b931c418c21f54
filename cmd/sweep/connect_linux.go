package main

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// setUserTimeout lets a connection fail on which nothing is acknowledged any more: by
// itself, TCP sends again for a quarter of an hour.
func setUserTimeout(network, _ string, c syscall.RawConn) error {
	if network == "unix" {
		return nil
	}
	// A kernel without the option is no reason not to connect.
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
}
