package integration

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestCommandThatIsGone: a command that can no longer be started is told in the log, with the reason, and
// costs its messages no attempt (INV-10).
func TestCommandThatIsGone(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.enqueue('n', 'q', 'k', '')`)
	command := filepath.Join(t.TempDir(), "send")
	if err := os.WriteFile(command, []byte("#!/bin/sh\nexit 0\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	process := sweepCall{dsn: db.DSN, args: []string{"run", "--tick", "20ms", "--sink", "exec:" + command}}.start(t)
	process.Stderr = &log
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, db.Pool, `select count(*) = 1 from outbox.settled`)
	if err := os.Remove(command); err != nil {
		t.Fatal(err)
	}
	put(t, db.Pool, "n", "q", "k2")
	eventually(t, "the log tells why", func() bool {
		text := log.String()
		return strings.Contains(text, "given_back=") && strings.Contains(text, "no such file")
	})
	if err := process.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := process.Wait(); err != nil {
		t.Error(err)
	}
	if got := one[int](t, db.Pool, `select attempt from outbox.pending`); got != 0 {
		t.Errorf("%d attempts were charged", got)
	}
}
