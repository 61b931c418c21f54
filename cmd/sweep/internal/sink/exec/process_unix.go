//go:build unix

package exec

import (
	"os"
	"syscall"
)

// killGroup kills the process group that p leads, and p itself in case it went
// into another. It is also called right after p's end: while the group has members
// p's number is not given out again, and once it has none the kernel must first
// come round all other numbers.
func killGroup(p *os.Process) {
	_ = syscall.Kill(-p.Pid, syscall.SIGKILL)
	_ = p.Kill()
}
