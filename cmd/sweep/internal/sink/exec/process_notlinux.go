//go:build unix && !linux

package exec

import "syscall"

// attributes puts the command into a process group of its own. The command goes on when
// sweep is killed with SIGKILL: only the kernel of Linux can end it then.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
