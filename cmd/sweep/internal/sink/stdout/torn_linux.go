package stdout

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// fd returns the descriptor of f. Unlike f.Fd it does not make f blocking.
func fd(f *os.File) (n int, err error) {
	c, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	return n, c.Control(func(raw uintptr) { n = int(raw) })
}

func reopen(f *os.File) (*os.File, error) {
	n, err := fd(f)
	if err != nil {
		return nil, err
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", n))
}

func pipeMayBeTorn(f *os.File) bool {
	n, err := fd(f)
	if err != nil {
		return false
	}
	flags, err := unix.FcntlInt(uintptr(n), unix.F_GETFL, 0)
	if err == nil && flags&unix.O_NONBLOCK != 0 {
		return true
	}
	unread, err := unix.IoctlGetInt(n, unix.TIOCINQ)
	return err == nil && unread > 0
}
