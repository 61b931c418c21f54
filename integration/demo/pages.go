package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

// servePages starts a node that goes on slowly with what is left, and serves the pages of its outbox. It
// outlives this process; stop is the command that ends it, and waits for that: without its
// database it would try on for a while.
func servePages(ctx context.Context, dsn string) (url, stop string, err error) {
	dir, err := os.MkdirTemp("", "fairclaim-demo-")
	if err != nil {
		return "", "", err
	}
	binary, logFile := filepath.Join(dir, "sweep"), filepath.Join(dir, "log")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/sweep")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return "", "", fmt.Errorf("build sweep: %w", err)
	}
	log, err := os.Create(logFile)
	if err != nil {
		return "", "", err
	}
	defer log.Close()
	node := exec.Command(binary, "run", "--node", "demo", "--sink", "exec:sleep 0.2", "--slots", "8", "--ui", "127.0.0.1:0", "--ui-actions")
	node.Env = append(os.Environ(), "DATABASE_URL="+dsn)
	node.Stderr = log
	node.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := node.Start(); err != nil {
		return "", "", fmt.Errorf("start sweep: %w", err)
	}
	stop = fmt.Sprintf("kill %[1]d; while kill -0 %[1]d 2>/dev/null; do sleep 0.1; done; rm -r %[2]s", node.Process.Pid, dir)
	served := regexp.MustCompile(`event=ui_listening url=(\S+)`)
	for range 100 {
		text, err := os.ReadFile(logFile)
		if err != nil {
			return "", "", err
		}
		if m := served.FindSubmatch(text); m != nil {
			return string(m[1]), stop, nil
		}
		select {
		case <-ctx.Done():
			_ = node.Process.Kill()
			return "", "", ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	_ = node.Process.Kill()
	return "", "", errors.New("the pages are not served; the log is " + logFile)
}
