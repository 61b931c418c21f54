package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// binary is a throw-away cluster that runs from the machine's server binaries.
// A janitor process is the parent of PostgreSQL and removes everything when
// this process is gone.
type binary struct {
	dir     string // the janitor's: data directory, logs, socket
	bin     string
	port    int
	janitor *janitor
	auth    role
	kept    bool // the janitor must be told to clean up
}

// openBinary initialises a cluster in a directory of its own and starts it.
func openBinary(ctx context.Context, bin string, opts Options) (engine, error) {
	user, err := serverUser()
	if err != nil {
		return nil, err
	}
	dir, err := makeDir(user)
	if err != nil {
		return nil, fmt.Errorf("make a directory for PostgreSQL: %w", err)
	}
	b := &binary{dir: dir, bin: bin, auth: role{Name: "postgres", password: randomHex(16)}}
	if b.janitor, err = startJanitor(dir, bin, user); err != nil {
		return nil, errors.Join(fmt.Errorf("start the janitor: %w", err), os.RemoveAll(dir))
	}
	if err := b.init(ctx, opts); err != nil {
		return nil, errors.Join(err, discard(b))
	}
	return b, nil
}

func (b *binary) init(ctx context.Context, opts Options) error {
	if err := b.give("password", []byte(b.auth.password)); err != nil {
		return err
	}
	if err := b.janitor.do(ctx, "init"); err != nil {
		return fmt.Errorf("initdb: %w%s", err, b.logTail())
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	b.port = port
	if err := b.configure(opts.settings()); err != nil {
		return err
	}
	return b.start(ctx)
}

// give writes a file for the server's user.
func (b *binary) give(name string, content []byte) error {
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	if b.janitor.user == nil {
		return nil
	}
	return os.Chown(path, int(b.janitor.user.Uid), int(b.janitor.user.Gid))
}

func (b *binary) configure(settings map[string]string) error {
	settings["listen_addresses"] = "127.0.0.1"
	settings["port"] = strconv.Itoa(b.port)
	settings["unix_socket_directories"] = ""
	if socket := filepath.Join(b.dir, ".s.PGSQL.65535.lock"); len(socket) < maxSocketPath {
		settings["unix_socket_directories"] = b.dir
	}
	var conf strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(settings[name], "'", "''"))
	}
	return b.give(filepath.Join("data", "postgresql.auto.conf"), []byte(conf.String()))
}

// maxSocketPath is the shortest limit that an operating system sets to the name of a unix socket.
const maxSocketPath = 104

func (b *binary) dsn() string {
	return superuserDSN(b.auth, net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)))
}

func (b *binary) origin() string { return "from " + b.bin }

func (b *binary) failed(context.Context) error {
	if _, err := os.Stat(filepath.Join(b.dir, "exit")); err != nil {
		return nil
	}
	return errors.New("PostgreSQL did not start" + b.logTail())
}

// logTail is the end of what initdb and the server had to say, on lines of its own.
func (b *binary) logTail() string {
	log, err := os.ReadFile(filepath.Join(b.dir, "log"))
	if err != nil {
		return ""
	}
	return tail(log)
}

func (b *binary) start(ctx context.Context) error {
	return b.janitor.do(ctx, "start")
}

func (b *binary) interrupt(ctx context.Context) error {
	pid, running := b.postmaster()
	if !running {
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGINT); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	return b.waitExit(ctx)
}

// kill stops the postmaster first, so that it starts no more children and
// notices none that dies, and then ends all of them.
func (b *binary) kill(ctx context.Context) error {
	pid, running := b.postmaster()
	if !running {
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	pids, err := children(ctx, pid)
	for _, pid := range append(pids, pid) {
		if e := syscall.Kill(pid, syscall.SIGKILL); e != nil && !errors.Is(e, syscall.ESRCH) {
			err = errors.Join(err, e)
		}
	}
	if err := errors.Join(err, b.waitExit(ctx)); err != nil {
		return err
	}
	waitGone(ctx, pids)
	return nil
}

// postmaster returns the process id of the running server.
func (b *binary) postmaster() (pid int, running bool) {
	if _, err := os.Stat(filepath.Join(b.dir, "exit")); err == nil {
		return 0, false
	}
	text, err := os.ReadFile(filepath.Join(b.dir, "pid"))
	if err != nil {
		return 0, false
	}
	pid, err = strconv.Atoi(string(bytes.TrimSpace(text)))
	return pid, err == nil
}

// waitExit returns when the janitor has seen the server's end.
func (b *binary) waitExit(ctx context.Context) error {
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for {
		if _, err := os.Stat(filepath.Join(b.dir, "exit")); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-poll.C:
		}
	}
}

func (b *binary) keep(ctx context.Context) error {
	err := b.janitor.do(ctx, "keep")
	b.kept = err == nil
	return err
}

func (b *binary) remove(ctx context.Context) error {
	if b.kept {
		if err := b.janitor.do(ctx, "clean"); err != nil {
			return fmt.Errorf("stop PostgreSQL: %w", err)
		}
	}
	if err := b.janitor.close(ctx); err != nil {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	if err := os.RemoveAll(b.dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove PostgreSQL's directory: %w", err)
	}
	return nil
}

func (b *binary) removeCommand() string {
	return fmt.Sprintf("kill -QUIT $(cat %[1]s/pid); sleep 1; rm -rf %[1]s", b.dir)
}

// children lists the processes whose parent is pid, as ps tells them, or /proc
// on a machine that has no ps.
func children(ctx context.Context, pid int) ([]int, error) {
	list, err := exec.CommandContext(ctx, "ps", "-A", "-o", "pid=", "-o", "ppid=").Output()
	if errors.Is(err, exec.ErrNotFound) {
		list, err = procList()
	}
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var pids []int
	for line := range strings.Lines(string(list)) {
		var child, parent int
		if _, err := fmt.Sscan(line, &child, &parent); err == nil && parent == pid {
			pids = append(pids, child)
		}
	}
	return pids, nil
}

// procList lists each process and its parent, one pair a line.
func procList() ([]byte, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(files) == 0 {
		return nil, errors.Join(err, errors.New("there is neither ps nor /proc"))
	}
	var list bytes.Buffer
	for _, file := range files {
		stat, _ := os.ReadFile(file) // a process that has ended meanwhile is none
		// pid (name) state parent ...; the name may hold anything.
		if end := bytes.LastIndexByte(stat, ')'); end > 0 {
			pid, _, _ := bytes.Cut(stat, []byte(" "))
			if fields := bytes.Fields(stat[end+1:]); len(fields) > 1 {
				fmt.Fprintf(&list, "%s %s\n", pid, fields[1])
			}
		}
	}
	return list.Bytes(), nil
}

// waitGone waits for the end of killed processes, so that the shared memory
// they hold is free. One that nobody reaps stays in the list though it has
// ended, so the wait is short.
func waitGone(ctx context.Context, pids []int) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	for _, pid := range pids {
		for syscall.Kill(pid, 0) == nil && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-poll.C:
			}
		}
	}
}
