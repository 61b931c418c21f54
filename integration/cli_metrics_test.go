package integration

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// monitored is a process of `sweep run --listen`.
type monitored struct {
	*sweepProcess
	url string
}

// monitor starts `sweep run` with a free port to listen at, and waits until it listens.
func monitor(t *testing.T, dsn string, args ...string) *monitored {
	t.Helper()
	m := &monitored{sweepProcess: &sweepProcess{name: "the node", log: &lockedBuffer{}, done: make(chan struct{})}}
	m.cmd = sweepCall{dsn: dsn, args: append([]string{"run", "--listen", "127.0.0.1:0", "--tick", "50ms"}, args...)}.start(t)
	m.cmd.Stderr = io.MultiWriter(m.log, t.Output())
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(m.done)
		_ = m.cmd.Wait() // its state is looked at by those who ask
	}()
	t.Cleanup(func() {
		_ = m.cmd.Process.Kill()
		<-m.done
	})
	m.url = awaitURL(t, m.log)
	return m
}

// awaitURL is where a log says that a node listens, without the path.
func awaitURL(t *testing.T, log fmt.Stringer) string {
	t.Helper()
	served := regexp.MustCompile(`url=(http://\S+)/metrics`)
	eventually(t, "it listens", func() bool { return served.MatchString(log.String()) })
	return served.FindStringSubmatch(log.String())[1]
}

// ask sends a request; the status is 0 where nobody answers.
func (m *monitored) ask(t *testing.T, method, path string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, m.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: patience()}
	defer client.CloseIdleConnections()
	answer, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// get asks for a path.
func (m *monitored) get(t *testing.T, path string) (status int, body string) {
	t.Helper()
	return m.ask(t, http.MethodGet, path)
}

// answers waits until a path answers with the status and a body that begins with the text.
func (m *monitored) answers(t *testing.T, path string, status int, text string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s answers %d %s", path, status, text), func() bool {
		got, body := m.get(t, path)
		return got == status && strings.HasPrefix(body, text)
	})
}

// scraped are the samples of a scrape, by name and labels: `fairclaim_budget_bytes`.
type scraped map[string]float64

// scrape reads all metrics.
func (m *monitored) scrape(t *testing.T) (s scraped, text string) {
	t.Helper()
	status, text := m.get(t, "/metrics")
	if status != http.StatusOK {
		t.Fatalf("/metrics answers %d %s", status, text)
	}
	s = scraped{}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64)
		if err != nil {
			t.Fatalf("%v in: %s", err, line)
		}
		s[line[:at]] = value
	}
	return s, text
}

// sum adds up a metric over those of its series whose labels hold each of the texts.
func (s scraped) sum(name string, labels ...string) (sum float64) {
	for series, value := range s {
		if got, rest, _ := strings.Cut(series, "{"); got != name || !containsAll(rest, labels) {
			continue
		}
		sum += value
	}
	return sum
}

func containsAll(text string, parts []string) bool {
	for _, part := range parts {
		if !strings.Contains(text, part) {
			return false
		}
	}
	return true
}

// balance is what claims have brought less what has become of it: what is in flight.
func (s scraped) balance() float64 {
	balance := s.sum("fairclaim_messages_claimed_total")
	for _, became := range []string{"done", "retried", "failed", "released", "lost"} {
		balance -= s.sum("fairclaim_messages_" + became + "_total")
	}
	return balance
}

// answering is a web server that answers by the path: /200 with 200. What comes to /wait waits until
// the function that it returns is called, and then gets 200.
func answering(t *testing.T) (url string, release func()) {
	wait := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, err := strconv.Atoi(strings.TrimPrefix(r.URL.Path, "/"))
		if err != nil {
			<-wait
			status = http.StatusOK
		}
		w.WriteHeader(status)
	}))
	released := false
	release = func() {
		if !released {
			released = true
			close(wait)
		}
	}
	t.Cleanup(func() { release(); server.CloseClientConnections(); server.Close() })
	return server.URL, release
}

// The counts of a node that delivers are those of the database, by sink and task queue; after a
// drain what was claimed is what was done, retried, failed, released and lost, to the message.
func TestMetricsAreWhatTheDatabaseHas(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"max_attempts": 3, "retry_base": "1 ms", "retry_cap": "1 ms"}')`)
	url, release := answering(t)
	// Namespaces say what the server answers.
	fill(t, db.Pool, "200", "hooks", 300, 100)
	fill(t, db.Pool, "400", "hooks", 20, 10)
	fill(t, db.Pool, "500", "hooks", 10, 10)
	fill(t, db.Pool, "n", "mail", 12, 10)
	fill(t, db.Pool, "m", "bounce", 7, 10)
	fill(t, db.Pool, "wait", "hooks", 5, 1000)
	run(t, db.Pool, "update outbox.pending set visible_after = clock_timestamp() - interval '2 h' where task_queue = 'mail'")
	m := monitor(t, db.DSN, "--sink", url+"/{namespace}", "--route", "mail=exec:true", "--route", "bounce=exec:sh -c 'exit 65'", "--budget", "10MiB")
	await(t, db.Pool, "select count(*) = 349 from outbox.settled")
	run(t, db.Pool, "select outbox.cancel(array['wait-1', 'wait-2'])") // their settles are lost

	var s scraped
	eventually(t, "the node has seen what there is", func() bool {
		s, _ = m.scrape(t)
		return s.balance() == 5 && s.sum("fairclaim_in_flight_messages") == 5
	})
	if got := s.sum("fairclaim_in_flight_bytes"); got != 5000 {
		t.Errorf("%v bytes are in flight, want 5000", got)
	}
	release()
	await(t, db.Pool, "select count(*) = 0 from outbox.claimed")
	eventually(t, "nothing is in flight", func() bool { s, _ = m.scrape(t); return s.sum("fairclaim_in_flight_messages") == 0 })

	want := map[string]float64{
		"fairclaim_messages_claimed_total":          354 + 20, // each of ten is claimed twice more
		"fairclaim_messages_done_total":             float64(one[int](t, db.Pool, "select count(*) from outbox.settled where outcome = 'done'")),
		"fairclaim_messages_failed_total":           float64(one[int](t, db.Pool, "select count(*) from outbox.settled where outcome = 'failed'")),
		"fairclaim_messages_retried_total":          20,
		"fairclaim_messages_lost_total":             2,
		"fairclaim_messages_released_total":         0,
		"fairclaim_messages_parked_total":           0,
		"fairclaim_in_flight_bytes":                 0,
		"fairclaim_budget_bytes":                    10 << 20,
		"fairclaim_high_watermark_bytes":            8 << 20,
		"fairclaim_low_watermark_bytes":             5 << 20,
		"fairclaim_shards_owned":                    16,
		"fairclaim_claiming_paused":                 0,
		"fairclaim_call_failures_total":             0,
		"fairclaim_claim_wait_seconds_count":        354 + 20,
		"fairclaim_dispatch_wait_seconds_count":     354 + 20,
		"fairclaim_delivery_duration_seconds_count": 354 + 20,
	}
	for hours, below := range map[string]float64{"3600": 0, "14400": 12} {
		if got := s.sum("fairclaim_claim_wait_seconds_bucket", `sink="exec:true"`, `le="`+hours+`"`); got != below {
			t.Errorf("%v messages were due for up to %s s, want %v", got, hours, below)
		}
	}
	for name, value := range want {
		if got := s.sum(name); got != value {
			t.Errorf("%s is %v, want %v", name, got, value)
		}
	}
	wantByQueue(t, s, url)
	m.stop(t)
}

// wantByQueue checks what the node of TestMetricsAreWhatTheDatabaseHas shows of single sinks, task
// queues and calls.
func wantByQueue(t *testing.T, s scraped, url string) {
	t.Helper()
	for _, of := range []struct {
		name, sink, queue string
		want              float64
	}{
		{"claimed", url, "hooks", 355},
		{"done", url, "hooks", 303},
		{"failed", url, "hooks", 30},
		{"done", "exec:true", "mail", 12},
		{"failed", "exec:true", "mail", 0},
		{"failed", "exec:sh", "bounce", 7},
	} {
		series := fmt.Sprintf("fairclaim_messages_%s_total{sink=%q,task_queue=%q}", of.name, of.sink, of.queue)
		if got, ok := s[series]; !ok || got != of.want {
			t.Errorf("%s is %v, want %v", series, got, of.want)
		}
	}
	if got := s.sum("fairclaim_delivery_duration_seconds_count", url, `outcome="retried"`); got != 30 { // the last attempts too
		t.Errorf("%v deliveries were to be retried, want 30", got)
	}
	if got, claims := s.sum("fairclaim_call_duration_seconds_count", `call="claim"`), s.sum("fairclaim_claims_total"); got != claims || claims < 4 {
		t.Errorf("%v claims took time and %v had an outcome", got, claims)
	}
}

// The linter of Prometheus finds nothing in a real scrape.
func TestMetricsAreLinted(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	put(t, db.Pool, "n", "q", "k")
	m := monitor(t, db.DSN, "--sink", "stdout")
	await(t, db.Pool, "select count(*) = 1 from outbox.settled")
	_, text := m.scrape(t)
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
	if !strings.Contains(text, "go_goroutines ") || !strings.Contains(text, "process_cpu_seconds_total ") ||
		!strings.Contains(text, "fairclaim_build_info{") || !strings.Contains(text, "fairclaim_node_info{") {
		t.Errorf("something is missing:\n%s", text)
	}
}

// A tenant that hangs shows as paused claiming and parked messages, which a drain releases.
func TestMetricsOfAHungTenant(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	url, release := answering(t)
	fill(t, db.Pool, "wait", "q", 40, 1000)
	m := monitor(t, db.DSN, "--sink", url+"/{namespace}", "--budget", "10000", "--min-pause", "20ms", "--drain-timeout", patience().String())
	var s scraped
	eventually(t, "all is claimed, and most of it parked", func() bool {
		s, _ = m.scrape(t)
		return s.balance() == 40 && s[`fairclaim_in_flight_messages{place="parked"}`] >= 30
	})
	parked := s[`fairclaim_in_flight_messages{place="parked"}`]
	if got := s.sum("fairclaim_in_flight_bytes"); got != 1000*(40-parked) || s.sum("fairclaim_in_flight_messages") != 40 {
		t.Errorf("%v bytes of %v messages are in flight, want 1000 for each of %v", got, s.sum("fairclaim_in_flight_messages"), 40-parked)
	}
	if got := s.sum("fairclaim_messages_parked_total"); got < parked || s.sum("fairclaim_claiming_pauses_total") < 1 {
		t.Errorf("%v messages are parked, counted %v in %v pauses", parked, got, s.sum("fairclaim_claiming_pauses_total"))
	}
	m.signal(t, syscall.SIGTERM)
	eventually(t, "the parked ones are released", func() bool {
		s, _ = m.scrape(t)
		return s.sum("fairclaim_messages_released_total") == parked && s.balance() == 40-parked
	})
	if n := one[int](t, db.Pool, "select count(*) from outbox.pending"); float64(n) != parked {
		t.Errorf("%d messages are pending, want %v", n, parked)
	}
	release()
	select {
	case <-m.done:
	case <-time.After(patience()):
		t.Fatal("it does not end")
	}
	wantOutcomes(t, db.Pool, map[string]int{"done": 40 - int(parked), "pending": int(parked)})
}
