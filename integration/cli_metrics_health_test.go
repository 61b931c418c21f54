package integration

import (
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// While PostgreSQL is away a node is alive and not ready, and a scrape, which asks nothing of it, shows what
// there was. When PostgreSQL is back, so is the node. The same where the schema is taken away.
func TestReadyWhileTheDatabaseAnswers(t *testing.T) {
	t.Parallel()
	server, db := ownServer(t)
	put(t, db.Pool, "n", "q", "k")
	m := monitor(t, db.DSN, "--sink", "stdout")
	standby := monitor(t, db.DSN, "--sink", "stdout", "--node", "standby")
	all := monitor(t, db.DSN, "--sink", "stdout", "--node", "all", "--shards", "0-15")
	await(t, db.Pool, "select count(*) = 1 from outbox.settled")
	all.answers(t, "/readyz", 200, "ready: 16 shards\n")
	standby.answers(t, "/readyz", 200, "ready: on standby")
	m.answers(t, "/readyz", 200, "ready: on standby")
	nodes := []*monitored{m, standby, all}

	if err := server.Server().Kill(t.Context()); err != nil {
		t.Skipf("the server cannot be killed: %v", err)
	}
	for _, n := range nodes {
		n.answers(t, "/readyz", 503, "not ready: the database failed the call ")
		if status, body := n.get(t, "/healthz"); status != 200 || !strings.HasPrefix(body, "alive") {
			t.Errorf("/healthz answers %d %s", status, body)
		}
	}
	sum := func(name string) (sum float64) {
		for _, n := range nodes {
			s, _ := n.scrape(t)
			sum += s.sum(name)
		}
		return sum
	}
	if done, failures := sum("fairclaim_messages_done_total"), sum("fairclaim_call_failures_total"); done != 1 || failures < 3 {
		t.Errorf("without a database the nodes show %v messages done, %v failed calls", done, failures)
	}
	if err := server.Server().Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		n.answers(t, "/readyz", 200, "ready: ")
	}

	eventually(t, "the database answers", func() bool { return db.Pool.Ping(t.Context()) == nil })
	run(t, db.Pool, "alter function outbox.claim_fair rename to gone")
	run(t, db.Pool, "alter function outbox.heartbeat rename to gone_too")
	all.answers(t, "/readyz", 503, "not ready: the database failed the call ")
	standby.answers(t, "/readyz", 503, "not ready: the database failed the call heartbeat")
	run(t, db.Pool, "alter function outbox.gone rename to claim_fair")
	run(t, db.Pool, "alter function outbox.gone_too rename to heartbeat")
	all.answers(t, "/readyz", 200, "ready: ")
	standby.answers(t, "/readyz", 200, "ready: ")
}

// While a node drains it is not ready, and shows its metrics until the last delivery has ended.
func TestMetricsOfADrain(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	url, release := answering(t)
	fill(t, db.Pool, "wait", "q", 3, 10)
	m := monitor(t, db.DSN, "--sink", url+"/{namespace}", "--drain-timeout", patience().String())
	await(t, db.Pool, "select count(*) = 3 from outbox.claimed")
	m.answers(t, "/readyz", 200, "ready: 16 shards")
	m.signal(t, syscall.SIGTERM)
	m.answers(t, "/readyz", 503, "not ready: draining")
	m.answers(t, "/healthz", 200, "alive")
	s, _ := m.scrape(t)
	if s[`fairclaim_claiming_paused{reason="draining"}`] != 1 || s.sum("fairclaim_claiming_paused") != 1 ||
		s.sum("fairclaim_in_flight_messages") != 3 || s.sum("fairclaim_shards_owned") != 0 {
		t.Errorf("while it drains: %v", s)
	}
	release()
	select {
	case <-m.done:
	case <-time.After(patience()):
		t.Fatal("it does not end")
	}
	if !m.cmd.ProcessState.Success() {
		t.Errorf("it ended with %v", m.cmd.ProcessState)
	}
	if status, body := m.get(t, "/healthz"); status != 0 {
		t.Errorf("it still answers: %d %s", status, body)
	}
}

// A loop that hangs fails /healthz until it turns again. Here it hangs in the log: nobody reads
// the pipe that it is written to, and the pipe is full.
func TestHealthOfAStuckLoop(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"lease": "4 s"}')`) // calls may take a quarter of it
	pipe := t.TempDir() + "/log"
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Skipf("no pipes with a name: %v", err)
	}
	reader := openPipe(t, pipe, os.O_RDONLY)
	log, filler := openPipe(t, pipe, os.O_WRONLY), openPipe(t, pipe, os.O_WRONLY)
	cmd := sweepCall{dsn: db.DSN, args: []string{"run", "--listen", "127.0.0.1:0", "--sink", "stdout"}}.start(t)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	text := &lockedBuffer{}
	drain := func() {
		buffer := make([]byte, 64<<10)
		n, _ := syscall.Read(int(reader.Fd()), buffer)
		_, _ = text.Write(buffer[:max(n, 0)])
	}
	served := regexp.MustCompile(`url=(http://\S+)/metrics`)
	eventually(t, "it listens", func() bool { drain(); return served.MatchString(text.String()) })
	m := &monitored{url: served.FindStringSubmatch(text.String())[1]}
	m.answers(t, "/readyz", 200, "ready")

	for _, size := range []int{4096, 1} { // until not even a byte has room
		for {
			if _, err := syscall.Write(int(filler.Fd()), make([]byte, size)); err != nil {
				break
			}
		}
	}
	run(t, db.Pool, `select outbox.configure('{"lease": "5 s"}')`) // of which the node tells its log
	m.answers(t, "/healthz", 503, "stuck: the loop has not been heard of for ")
	if status, body := m.get(t, "/readyz"); status != 503 || !strings.HasPrefix(body, "stuck") {
		t.Errorf("/readyz answers %d %s", status, body)
	}
	if s, _ := m.scrape(t); s.sum("fairclaim_loop_age_seconds") < 1 || s.sum("fairclaim_heartbeat_age_seconds") < 1 {
		t.Errorf("the loop is stuck, and heard of %v s ago", s.sum("fairclaim_loop_age_seconds"))
	}
	eventually(t, "the loop turns again", func() bool {
		drain()
		status, _ := m.get(t, "/healthz")
		return status == 200
	})
	eventually(t, "the node is ready again", func() bool {
		drain()
		status, _ := m.get(t, "/readyz")
		return status == 200
	})
}

// openPipe opens a pipe that has a name. Reading and writing by the descriptor do not wait.
func openPipe(t *testing.T, name string, flag int) *os.File {
	t.Helper()
	fd, err := syscall.Open(name, flag|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { f.Close() })
	return f
}
