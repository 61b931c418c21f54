package exec

import "syscall"

// attributes puts the command into a process group of its own and has the kernel
// kill it when sweep dies. A setuid command loses the latter.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
