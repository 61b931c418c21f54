package pgtest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// deadline is how long a test waits for what happens in another process.
func deadline() time.Duration { return pgtest.Scaled(2 * time.Minute) }

func TestStartSaysWhatItUses(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	server := start(t, pgtest.Options{Log: &log})
	want := "PostgreSQL " + server.Version() + " "
	if got := log.String(); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("got %q; want one line that begins with %q", got, want)
	}
}

func TestKillLosesNothingThatWasCommitted(t *testing.T) {
	t.Parallel()
	server := start(t, pgtest.Options{})
	if server.Kind() == pgtest.KindDSN {
		if err := server.Kill(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("Kill of an existing server: got %v, want ErrUnsupported", err)
		}
		return
	}
	db, err := server.CreateDatabase(t.Context(), "kept", "")
	if err != nil {
		t.Fatal(err)
	}
	conn := connect(t, db.DSN)
	exec1(t, conn, "set synchronous_commit = on")
	exec1(t, conn, "create table note as select 'before' as word")

	if err := server.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := conn.Ping(t.Context()); err == nil {
		t.Error("a session outlived Kill")
	}
	if answers(db.DSN) {
		t.Error("the server answers after Kill")
	}
	for _, how := range []string{"after a kill", "while it runs"} {
		if err := server.Restart(t.Context()); err != nil {
			t.Fatalf("restart %s: %v", how, err)
		}
		var word string
		if err := connect(t, db.DSN).QueryRow(t.Context(), "select n.word from note n").Scan(&word); err != nil || word != "before" {
			t.Errorf("restart %s: got %q, %v; want the row", how, word, err)
		}
	}
}

func TestStopLeavesNothing(t *testing.T) {
	t.Parallel()
	notExisting(t)
	server := start(t, pgtest.Options{})
	for range 2 {
		if err := server.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if answers(server.AdminDSN()) {
		t.Error("the server answers after Stop")
	}
}

func TestSettingsReachTheServer(t *testing.T) {
	t.Parallel()
	notExisting(t)
	server := start(t, pgtest.Options{Durable: true, Settings: map[string]string{"application_name": "it's here"}})
	conn := connect(t, server.AdminDSN())
	for name, want := range map[string]string{
		"fsync": "on", "synchronous_commit": "on", "application_name": "it's here", "max_connections": "200", "TimeZone": "UTC",
	} {
		var got string
		if err := conn.QueryRow(t.Context(), "select current_setting($1)", name).Scan(&got); err != nil || got != want {
			t.Errorf("%s: got %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestFailedStartShowsTheLog(t *testing.T) {
	t.Parallel()
	notExisting(t)
	server, err := pgtest.Start(t.Context(), pgtest.Options{
		Log:      new(bytes.Buffer),
		Settings: map[string]string{"shared_buffers": "much"},
	})
	if err == nil {
		stop(t, server)
		t.Fatal("a server started with shared_buffers = much")
	}
	if !strings.Contains(err.Error(), "shared_buffers") {
		t.Errorf("the error does not show the server's log: %v", err)
	}
}

// A server must not outlive its starter, however that ends.
func TestServerDiesWithItsStarter(t *testing.T) {
	t.Parallel()
	notExisting(t)
	admin, _ := startAndKill(t, "start")
	if pg.Server().Kind() == pgtest.KindBinary {
		eventually(t, "the data directory goes", func() bool { return !exists(admin.dir) })
	}
	eventually(t, "the server ends", func() bool { return !answers(admin.dsn) })
}

// Stop or the stop command must end a server that was kept, and nothing else may.
func TestKeptServerOutlivesItsStarter(t *testing.T) {
	t.Parallel()
	notExisting(t)
	admin, stopCommand := startAndKill(t, "keep")
	if !answers(admin.dsn) {
		t.Error("a kept server does not answer after its starter was killed")
	}
	if out, err := exec.CommandContext(t.Context(), "sh", "-c", stopCommand).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", stopCommand, err, out)
	}
	if answers(admin.dsn) {
		t.Error("the server answers after its stop command")
	}

	server := start(t, pgtest.Options{Keep: true})
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if answers(server.AdminDSN()) {
		t.Error("the server answers after Stop")
	}
}

// notExisting skips a test of what happens to servers of our own.
func notExisting(t *testing.T) {
	t.Helper()
	if pg.Server().Kind() == pgtest.KindDSN {
		t.Skip("FAIRCLAIM_TEST_DSN names a server that is not ours to start or stop")
	}
}

// place is where a server is and where it has its data.
type place struct{ dsn, dir string }

// startAndKill has another process start a server, and kills it with its whole
// process group, as a supervisor ends a job.
func startAndKill(t *testing.T, how string) (admin place, stopCommand string) {
	t.Helper()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), starterVariable+"="+how)
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	child.Stderr = os.Stderr
	stdout, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer child.Wait()
	defer syscall.Kill(-child.Process.Pid, syscall.SIGKILL)

	lines := bufio.NewScanner(stdout)
	for _, line := range []*string{&admin.dsn, &stopCommand} {
		if !lines.Scan() {
			t.Fatalf("the starter said too little: %v", lines.Err())
		}
		*line = lines.Text()
	}
	if err := connect(t, admin.dsn).QueryRow(t.Context(), "show data_directory").Scan(&admin.dir); err != nil {
		t.Fatal(err)
	}
	return admin, stopCommand
}

func start(t *testing.T, opts pgtest.Options) *pgtest.Server {
	t.Helper()
	server, err := pgtest.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, server) })
	return server
}

func stop(t *testing.T, server *pgtest.Server) {
	if err := server.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func exec1(t *testing.T, conn *pgx.Conn, statement string) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// answers reports whether something listens where dsn points to and speaks like PostgreSQL.
func answers(dsn string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), deadline())
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		var refused *net.OpError
		return !errors.As(err, &refused)
	}
	return conn.Close(ctx) == nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, os.ErrNotExist)
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	end := time.After(deadline())
	for !done() {
		select {
		case <-poll.C:
		case <-end:
			t.Fatalf("not within %v: %s", deadline(), what)
		}
	}
}
