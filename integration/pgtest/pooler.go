package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// poolerTimeout bounds the start of a pooler.
const poolerTimeout = 30 * time.Second

// ErrNoPooler is returned by [StartPooler] on a machine that has no pgbouncer.
var ErrNoPooler = errors.New("no pgbouncer found: apt-get install pgbouncer (or set PGBOUNCER to the program)")

// StartPooler starts a pgbouncer in transaction mode before the server that dsn names,
// and returns dsn by way of it. It deals its few server connections out in turn, so that
// two transactions of one client in a row have different ones. Options are more lines of
// its configuration, such as "pool_mode = session"; the last of a name counts. It ends with
// the test, and with this process, however that ends.
func StartPooler(t testing.TB, dsn string, options ...string) (string, error) {
	t.Helper()
	program, err := findPooler()
	if err != nil {
		return "", err
	}
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal("pgtest: the connection string does not parse")
	}
	user, err := serverUser()
	if err != nil {
		return "", err
	}
	dir, err := makeDir(user)
	if err != nil {
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	ini := fmt.Sprintf(`[databases]
* = host=%s port=%d
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %d
unix_socket_dir =
auth_type = plain
auth_file = %s
pool_mode = transaction
default_pool_size = 4
server_round_robin = 1
max_client_conn = 200
%s
`, config.Host, config.Port, port, filepath.Join(dir, "users"), strings.Join(options, "\n"))
	users := fmt.Sprintf("\"%s\" \"%s\"\n", config.User, config.Password)
	for name, text := range map[string]string{"pgbouncer.ini": ini, "users": users} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", errors.Join(err, os.RemoveAll(dir))
		}
		if user != nil {
			if err := os.Chown(path, int(user.Uid), int(user.Gid)); err != nil {
				return "", errors.Join(err, os.RemoveAll(dir))
			}
		}
	}
	// The shell's standard input ends with this process.
	cmd := exec.Command("sh", "-c", `"$0" -q "$1/pgbouncer.ini" 2>"$1/log" & cat; kill -9 $!; rm -rf "$1"`, program, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	alive, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(dir))
	}
	t.Cleanup(func() { stopPooler(t, alive, cmd, dir) })
	pooled := throughPort(dsn, port)
	if err := awaitPooler(t, pooled); err != nil {
		log, _ := os.ReadFile(filepath.Join(dir, "log"))
		return "", fmt.Errorf("pgbouncer does not answer: %w%s", err, tail(log))
	}
	return pooled, nil
}

func findPooler() (string, error) {
	if program := os.Getenv("PGBOUNCER"); program != "" {
		return exec.LookPath(program)
	}
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if program, err := exec.LookPath(name); err == nil {
			return program, nil
		}
	}
	return "", ErrNoPooler
}

func stopPooler(t testing.TB, alive io.Closer, cmd *exec.Cmd, dir string) {
	_ = alive.Close()
	_ = cmd.Wait() // killed, on purpose
	if err := os.RemoveAll(dir); err != nil {
		t.Errorf("pgtest: %v", err)
	}
}

// awaitPooler returns when the pooler answers.
func awaitPooler(t testing.TB, dsn string) error {
	ctx, cancel := context.WithTimeout(t.Context(), Scaled(poolerTimeout))
	defer cancel()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		err := ping(ctx, dsn)
		if err == nil || ctx.Err() != nil {
			return err
		}
		<-poll.C
	}
}

// throughPort is dsn for a port of the loopback address.
func throughPort(dsn string, port int) string {
	host := "127.0.0.1"
	if u, err := url.Parse(dsn); err == nil && strings.Contains(dsn, "://") {
		u.Host = net.JoinHostPort(host, strconv.Itoa(port))
		return u.String()
	}
	return fmt.Sprintf("%s host=%s port=%d", dsn, host, port)
}
