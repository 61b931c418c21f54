package pgtest_test

import (
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
const deadline = 30 * time.Second

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
	server := start(t, pgtest.Options{})
	for range 2 {
		if err := server.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if server.Kind() != pgtest.KindDSN && answers(server.AdminDSN()) {
		t.Error("the server answers after Stop")
	}
}

func TestSettingsReachTheServer(t *testing.T) {
	t.Parallel()
	server := start(t, pgtest.Options{Durable: true, Settings: map[string]string{"application_name": "it's here"}})
	if server.Kind() == pgtest.KindDSN {
		return // an existing server keeps its own
	}
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
	server, err := pgtest.Start(t.Context(), pgtest.Options{
		Log:      new(bytes.Buffer),
		Settings: map[string]string{"shared_buffers": "much"},
	})
	if err == nil {
		kind := server.Kind()
		stop(t, server)
		if kind != pgtest.KindDSN {
			t.Fatal("a server started with shared_buffers = much")
		}
		return
	}
	if !strings.Contains(err.Error(), "shared_buffers") {
		t.Errorf("the error does not show the server's log: %v", err)
	}
}

// A server must not outlive its starter, however that ends.
func TestServerDiesWithItsStarter(t *testing.T) {
	t.Parallel()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), starterVariable+"=start")
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	child.Stderr = os.Stderr
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	dsn := make([]byte, 256)
	n, err := out.Read(dsn)
	if err != nil {
		t.Fatalf("the starter said nothing: %v", err)
	}
	admin := strings.TrimSpace(string(dsn[:n]))
	var dir string
	if err := connect(t, admin).QueryRow(t.Context(), "show data_directory").Scan(&dir); err != nil {
		t.Fatal(err)
	}
	// The whole group, as a supervisor ends a job.
	if err := syscall.Kill(-child.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	child.Wait()
	switch pg.Server().Kind() {
	case pgtest.KindBinary:
		eventually(t, "the data directory goes", func() bool { return !exists(dir) })
		fallthrough
	case pgtest.KindDocker:
		eventually(t, "the server ends", func() bool { return !answers(admin) })
	}
}

func TestKeptServerOutlivesStop(t *testing.T) {
	t.Parallel()
	server := start(t, pgtest.Options{Keep: true})
	if err := server.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !answers(server.AdminDSN()) {
		t.Fatal("a kept server does not answer after Stop")
	}
	if server.Kind() == pgtest.KindDSN {
		return
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", server.StopCommand()).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", server.StopCommand(), err, out)
	}
	if answers(server.AdminDSN()) {
		t.Error("the server answers after its stop command")
	}
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
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
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
	end := time.After(deadline)
	for !done() {
		select {
		case <-poll.C:
		case <-end:
			t.Fatalf("not within %v: %s", deadline, what)
		}
	}
}
