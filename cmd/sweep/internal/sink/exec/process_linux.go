package exec

import "syscall"

// attributes puts the command into a process group of its own, and lets the kernel kill it
// when sweep dies. The latter does not work for a setuid command.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
