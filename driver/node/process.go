package node

import (
	"crypto/rand"
	"fmt"
	"os"
	"strings"
)

// process says which process a heartbeat comes from: host and process id, for an operator; and
// what another process on the same machine needs to tell whether this one still runs.
type process struct {
	host  string
	pid   int
	scope string // where process ids mean the same: of this boot and this container; empty: unknown
	start string // when it started, in the kernel's count: ids of processes are used again
}

// thisProcess is the one that runs this code.
func thisProcess() process {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	p := process{host: host, pid: os.Getpid(), scope: processScope()}
	p.start = processStart(p.pid)
	return p
}

// String is the process as a heartbeat sends it, unlike that of any other node, also of one
// in the same process.
func (p process) String() string {
	return fmt.Sprintf("%s pid %d %s/%s/%s", p.host, p.pid, p.scope, p.start, rand.Text()[:6])
}

// gone reports whether a process, as a heartbeat sent it, ran on this machine and no longer runs.
// False where that cannot be told.
func (p process) gone(text string) bool {
	if p.scope == "" || !strings.HasPrefix(text, p.host+" pid ") {
		return false
	}
	var pid int
	var marks string
	if n, err := fmt.Sscanf(strings.TrimPrefix(text, p.host+" pid "), "%d %s", &pid, &marks); n != 2 || err != nil {
		return false
	}
	scope, rest, _ := strings.Cut(marks, "/")
	start, _, found := strings.Cut(rest, "/")
	return found && scope == p.scope && start != "" && processStart(pid) != start
}
