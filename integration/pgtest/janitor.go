package pgtest

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

//go:embed janitor.sh
var janitorScript []byte

// janitor is the process that runs PostgreSQL and outlives this one for as long
// as it takes to clean up. It lives in a session of its own, out of the reach of
// what a terminal or a supervisor sends to the process group of a test. One
// caller uses it at a time.
type janitor struct {
	user     *syscall.Credential // whom it runs as; nil: whoever we are
	cmd      *exec.Cmd
	commands *os.File // our end of its stdin; closed by the kernel at the latest
	answers  *os.File
	reader   *bufio.Reader
}

// startJanitor starts the janitor of dir for the server binaries in bin.
func startJanitor(dir, bin string, user *syscall.Credential) (*janitor, error) {
	script := filepath.Join(dir, "janitor.sh")
	if err := os.WriteFile(script, janitorScript, 0o644); err != nil {
		return nil, err
	}
	stdin, commands, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	answers, stdout, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, commands.Close())
	}
	defer stdout.Close()

	cmd := exec.Command("sh", script, dir, bin)
	cmd.Dir = dir
	cmd.Stdin, cmd.Stdout = stdin, stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: user}
	cmd.Env = []string{"LC_ALL=C", "TZ=UTC"} // no secret of ours belongs to another user's processes
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, commands.Close(), answers.Close())
	}
	return &janitor{user: user, cmd: cmd, commands: commands, answers: answers, reader: bufio.NewReader(answers)}, nil
}

// do has the janitor carry out one command and returns an error unless it
// answers with success before ctx ends. After that its answer comes too late for
// the next command: there is nothing left but to close it.
func (j *janitor) do(ctx context.Context, command string) error {
	stop := context.AfterFunc(ctx, func() { j.answers.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := fmt.Fprintln(j.commands, command); err != nil {
		return fmt.Errorf("the janitor is gone: %w", err)
	}
	status, err := j.reader.ReadString('\n')
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("wait for the janitor: %w", err)
	}
	if status = strings.TrimSpace(status); status != "0" {
		return fmt.Errorf("exit status %s", status)
	}
	return nil
}

// close lets the janitor clean up and waits for it.
func (j *janitor) close(ctx context.Context) error {
	if err := j.commands.Close(); err != nil {
		return err
	}
	defer j.answers.Close()
	done := make(chan error, 1)
	go func() { done <- j.cmd.Wait() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// serverUser returns whom to run PostgreSQL as: nil for ourselves, or, because
// it refuses to run as root, the user postgres or nobody.
func serverUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(errUID, errGID); err != nil {
			return nil, fmt.Errorf("look up the user %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL does not run as root, and there is neither a user postgres nor nobody")
}

// makeDir makes a directory that belongs to the server's user. Where that user
// may not come to the temporary directory or remove things from it, it is made
// below /tmp.
func makeDir(as *syscall.Credential) (string, error) {
	base := os.TempDir()
	if as != nil && !public(base) {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "fairclaim-postgres-")
	if err != nil || as == nil {
		return dir, err
	}
	if err := os.Chown(dir, int(as.Uid), int(as.Gid)); err != nil {
		return "", errors.Join(err, os.Remove(dir))
	}
	return dir, nil
}

// public reports whether every user may write to dir and search the directories above it.
func public(dir string) bool {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return false
	}
	for needed := fs.FileMode(0o003); ; needed = 0o001 {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&needed != needed {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
		dir = filepath.Dir(dir)
	}
}
