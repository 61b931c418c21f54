package exec

import (
	"os"
	osexec "os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/driver"
)

// INV-2: the command of a sweep that is killed does not go on working on a message
// that another node soon claims.
func TestCommandDiesWithItsParent(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	parent := osexec.CommandContext(t.Context(), os.Args[0])
	parent.Env = append(os.Environ(), "EXEC_TEST_DELIVER=sh -c 'echo $$ > \"$1\"; exec sleep 60' sh "+quote(file))
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	child := pid(t, file)
	if gone(child) {
		t.Fatal("the command ended by itself")
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	waitFor(t, "the end of the command", func() bool { return gone(child) })
}

// openPipes counts the pipes that this process holds.
func openPipes(t *testing.T) (n int) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(target, "pipe:") {
			n++
		}
	}
	return n
}

func TestNoPipeIsLeftOpen(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // it closes what nobody refers to
	before := openPipes(t)
	good, _ := shell(t, "cat >/dev/null", 0)
	bad, _ := shell(t, "exit 1", 0)
	late, _ := shell(t, "sleep 60", 20*time.Millisecond)
	gone, _ := shell(t, "exit 0", 0)
	gone.path = "/no/such/file"
	gone.failing = time.Now().Add(-2 * startPatience) // so that it is not held
	for range 3 {
		for _, s := range []*Sink{good, bad, late, gone} {
			_ = s.Deliver(t.Context(), driver.Delivery{Payload: make([]byte, 1<<20)})
		}
	}
	if after := openPipes(t); after != before {
		t.Errorf("%d pipes are left open", after-before)
	}
}
