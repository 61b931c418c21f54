package node

import (
	"crypto/sha256"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// processScope names this boot of the machine and this process's own view of process ids; a
// container has another one than its host.
func processScope() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	view, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%x", sha256.Sum256(append(boot, view...)))[:8]
}

// processStart is when a process started, in ticks since the boot; empty where there is none.
func processStart(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// The second field, the command, stands in parentheses and may hold anything; the
	// start is the twenty-second.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" { // a zombie has ended
		return ""
	}
	return fields[19]
}
