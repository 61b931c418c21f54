package integration

import (
	"net"
	"strings"
	"testing"
	"time"
)

// What is wrong with --listen is said at the start, with its name.
func TestListenErrors(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	const away = "postgres://nobody@127.0.0.1:1/none"
	sweepFails(t, away, 1, []string{"run", "--sink", "stdout", "--listen", address}, "--listen "+address, "address already in use", "port 0")
	sweepFails(t, away, 1, []string{"run", "--sink", "stdout", "--listen", "192.0.2.1:9464"}, "--listen 192.0.2.1:9464", "cannot assign")
	for _, wrong := range []string{"9464", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:no-such-service", "http://127.0.0.1:9464"} {
		sweepFails(t, away, 2, []string{"run", "--sink", "stdout", "--listen", wrong}, "--listen", wrong, "HOST:PORT")
	}
	sweepFails(t, away, 2, []string{"run", "--sink", "no-such-sink", "--listen", address}, "--sink") // what is wrong with the command line comes first
	sweepFails(t, away, 2, []string{"once", "--sink", "stdout", "--listen", address}, "--listen")
	got := sweepCall{dsn: away, env: []string{"SWEEP_LISTEN=" + address}, args: []string{"run", "--sink", "stdout"}}.do(t)
	got.want(t, 1, []string{"SWEEP_LISTEN"}, "--listen "+address)
	got = sweepCall{dsn: away, env: []string{"SWEEP_LISTEN=0.0.0.0:0"}, args: []string{"run", "--sink", "stdout"}}.do(t)
	got.want(t, 1, []string{"SWEEP_LISTEN"}, "level=WARN", "serving metrics to other machines too", "cannot connect")
	got = sweepCall{dsn: away, env: []string{"SWEEP_LISTEN="}, args: []string{"run", "--sink", "stdout"}}.do(t)
	if strings.Contains(got.stderr, "serving metrics") {
		t.Errorf("without an address something listens: %s", got.stderr)
	}
}

// The server answers GET and HEAD of its three paths, and nothing else; no secret of the command line
// stands in what it shows; whoever connects and says nothing is not waited for.
func TestMetricsServer(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	put(t, db.Pool, "n", "q\n\"x\\\"", "k")
	m := monitor(t, db.DSN, "--sink", "http://me:s3cret@127.0.0.1:1/s3cret?token=s3cret", "--route", "r=exec:true s3cret", "--node", "n\"1\n")
	m.answers(t, "/readyz", 200, "ready")
	silent, err := net.Dial("tcp", strings.TrimPrefix(m.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	_ = silent.SetReadDeadline(time.Now().Add(patience()))
	eventually(t, "the message has been tried", func() bool { s, _ := m.scrape(t); return s.sum("fairclaim_messages_retried_total") > 0 })
	for _, path := range []string{"/metrics", "/healthz", "/readyz"} {
		for method, want := range map[string]int{"GET": 200, "HEAD": 200, "POST": 405, "PUT": 405, "DELETE": 405, "OPTIONS": 405, "TRACE": 405} {
			status, body := m.ask(t, method, path)
			if status != want || method == "HEAD" && body != "" {
				t.Errorf("%s %s answers %d, want %d: %.100q", method, path, status, want, body)
			}
			if strings.Contains(body, "s3cret") || strings.Contains(body, db.Pool.Config().ConnConfig.Password) {
				t.Errorf("%s shows a secret:\n%s", path, body)
			}
		}
	}
	for _, path := range []string{"/", "/debug/pprof/", "/metrics/x", "/../metrics"} {
		if status, body := m.get(t, path); status != 404 && path != "/../metrics" {
			t.Errorf("%s answers %d %s", path, status, body)
		}
	}
	s, text := m.scrape(t)
	if _, ok := s[`fairclaim_node_info{node="n\"1\n"}`]; !ok {
		t.Errorf("the node's name is missing:\n%s", text)
	}
	if _, err := silent.Read(make([]byte, 1)); err == nil {
		t.Error("a connection that asks nothing is answered")
	} else if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
		t.Errorf("a connection that asks nothing stays: %v", err)
	}
	m.stop(t)
}
