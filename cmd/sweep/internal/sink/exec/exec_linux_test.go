package exec

import (
	"os"
	osexec "os/exec"
	"path/filepath"
	"testing"
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
