//go:build unix && !linux

package exec

import "syscall"

// attributes puts the command into a process group of its own. It outlives a sweep
// that is killed with SIGKILL: only Linux can tell the kernel to prevent that.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
