//go:build unix

package exec

import (
	"os"
	"syscall"
)

// killGroup kills the process group that p leads, and p itself in case it has moved to
// another group. It is also called right after the end of p: while the group has members,
// the kernel gives the number of p to no other process, and once it has none, only after
// all other numbers.
func killGroup(p *os.Process) {
	_ = syscall.Kill(-p.Pid, syscall.SIGKILL)
	_ = p.Kill()
}
