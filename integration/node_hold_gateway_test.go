package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// holdForLong has the outbox hold for an hour and more, so that no hold ends before a test says so: by endHolds.
const holdForLong = `select outbox.configure('{"hold_base": "1 h", "hold_cap": "1 day"}')`

// endHolds lets the time pass until each destination that is held is due for a probe.
func endHolds(t testing.TB, q querier) {
	t.Helper()
	run(t, q, `update outbox.destination set held_until = clock_timestamp() - interval '1 s' where state = 'held' and held_until <> 'infinity'`)
}

// recovered lets the time pass in which the flow grows again.
func recovered(t testing.TB, q querier) {
	t.Helper()
	run(t, q, `update outbox.destination set lifted_at = lifted_at - interval '1 min' where state = 'recovering'`)
}

// heldNow are the destinations that are held, as "namespace/task queue".
func heldNow(t testing.TB, q querier) []string {
	t.Helper()
	return list[string](t, q, `select coalesce(namespace, 'all') || '/' || task_queue from outbox.destination where state = 'held' order by 1`)
}

// gateway answers for all tenants, or for none.
type gateway struct {
	*httptest.Server
	down     atomic.Bool
	attempts atomic.Int64 // while it was down

	mu   sync.Mutex
	came map[string]int // by path
}

func newGateway(t testing.TB) *gateway {
	g := &gateway{came: map[string]int{}}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.down.Load() {
			g.attempts.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		g.mu.Lock()
		g.came[r.URL.Path]++
		g.mu.Unlock()
	}))
	t.Cleanup(func() { g.CloseClientConnections(); g.Close() })
	return g
}

// startSweep starts a process of sweep run.
func startSweep(t testing.TB, dsn, name string, args ...string) *sweepProcess {
	t.Helper()
	p := &sweepProcess{name: name, log: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd = sweepCall{dsn: dsn, args: append([]string{"run", "--node", name, "--tick", "50ms"}, args...)}.start(t)
	p.cmd.Stderr = p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("%s:\n%s", name, p.log)
		}
	})
	return p
}

// A gateway before a thousand tenants goes down: it gets as many attempts as two nodes have slots, and ten, and then
// the route of all is held; after that one for each probe. With its first answer all flows again, on
// both nodes. No message has paid for it with more than one attempt.
func TestSharedGatewayGoesDown(t *testing.T) {
	t.Parallel()
	const tenants, slots = 1000, 16
	db := setUp(t, holdForLong)
	gate := newGateway(t)
	enqueue := func(round int) {
		run(t, db.Pool, `select outbox.enqueue_batch(array(select 't' || i from generate_series(1, $1::int) as i), array_fill('q'::text, array[$1::int]),
       array(select 't' || i || '/' || $2::int from generate_series(1, $1::int) as i), array_fill(''::bytea, array[$1::int]))`, tenants, round)
	}
	var nodes []*sweepProcess
	for _, name := range []string{"n1", "n2"} {
		nodes = append(nodes, startSweep(t, db.DSN, name, "--sink", gate.URL+"/{namespace}", "--slots", fmt.Sprint(slots), "--spare", "0"))
	}
	enqueue(0)
	await(t, db.Pool, "select count(*) = $1 from outbox.settled", tenants)
	await(t, db.Pool, "select count(*) = 2 from outbox.node as n where exists (select from outbox.shard as s where s.node = n.node)")

	gate.down.Store(true)
	for round := 1; round <= 3; round++ {
		enqueue(round)
	}
	await(t, db.Pool, "select exists (select from outbox.destination where state = 'held' and namespace is null)")
	await(t, db.Pool, "select count(*) = 0 from outbox.claimed")
	attempts := gate.attempts.Load()
	t.Logf("%d attempts until it was held", attempts)
	if most := int64(2*slots + 10); attempts > most {
		t.Errorf("the gateway got %d attempts until it was held, want %d at most", attempts, most)
	}
	if got := heldNow(t, db.Pool); fmt.Sprint(got) != "[all/q]" {
		t.Errorf("held are %v", got)
	}
	for probes := int64(0); probes <= 3; probes++ {
		endHolds(t, db.Pool)
		await(t, db.Pool, "select held_until > clock_timestamp() from outbox.destination where namespace is null")
		await(t, db.Pool, "select count(*) = 0 from outbox.claimed")
		if probes == 0 { // what a claim took that ran while the hold began has been tried by now, too
			attempts = gate.attempts.Load()
		}
		if got := gate.attempts.Load(); got != attempts+probes {
			t.Errorf("%d attempts after %d probes, want %d", got, probes, attempts+probes)
		}
	}
	if n := one[int](t, db.Pool, "select count(*) from outbox.pending where attempt > 1"); n > 0 {
		t.Errorf("%d messages have paid with more than one attempt", n)
	}

	gate.down.Store(false)
	endHolds(t, db.Pool)
	await(t, db.Pool, "select state <> 'held' from outbox.destination where namespace is null")
	recovered(t, db.Pool)
	run(t, db.Pool, "select outbox.retry_now('t' || i, 100) from generate_series(1, $1::int) as i", tenants) // the backoff of those charged
	await(t, db.Pool, "select count(*) = $1 from outbox.settled where outcome = 'done'", 4*tenants)
	for _, n := range nodes {
		if by := one[int](t, db.Pool, "select count(*) from outbox.settled as s join outbox.message as m using (id) where s.settled_by = $1 and m.dispatch_key !~ '/0$'", n.name); by == 0 {
			t.Errorf("%s has delivered nothing of the backlog", n.name)
		}
		lines := strings.Count(n.log.String(), "THE ROUTE OF ALL NAMESPACES IS HELD")
		if lines == 0 || lines > 10 || strings.Count(n.log.String(), "level=WARN msg=\"THE ROUTE OF ALL") != lines || strings.Contains(n.log.String(), "of_namespace") {
			t.Errorf("%s: %d lines tell that the route of all is held:\n%s", n.name, lines, n.log)
		}
	}
	if n := len(gate.came); n != tenants {
		t.Errorf("%d tenants were reached", n)
	}
}

// Three customers' endpoints are dead: each is held for itself, after as many attempts as there are slots and ten at
// most, and nobody else: with a sink that does not say that they share one.
func TestDeadCustomersHoldNobodyElse(t *testing.T) {
	t.Parallel()
	const slots = 4
	db := setUp(t, holdForLong)
	for i := range 3 {
		fill(t, db.Pool, fmt.Sprint("dead", i), "q", 200, 1)
	}
	for i := range 20 {
		fill(t, db.Pool, fmt.Sprint("live", i), "q", 10, 1)
	}
	for _, name := range []string{"n1", "n2"} {
		startSweep(t, db.DSN, name, "--slots", fmt.Sprint(slots), "--spare", "0",
			"--sink", `exec:sh -c 'case $FAIRCLAIM_NAMESPACE in dead*) echo no connection; exit 69;; esac'`)
	}
	await(t, db.Pool, "select count(*) = 200 from outbox.settled where outcome = 'done'")
	await(t, db.Pool, "select count(*) = 3 from outbox.destination where state = 'held'")
	await(t, db.Pool, "select count(*) = 0 from outbox.claimed")
	if got := heldNow(t, db.Pool); fmt.Sprint(got) != "[dead0/q dead1/q dead2/q]" {
		t.Errorf("held are %v", got)
	}
	if n := one[int](t, db.Pool, "select count(*) from outbox.settled where attempts > 1"); n > 0 {
		t.Errorf("%d messages of others took more than one attempt", n)
	}
	for i := range 3 {
		attempts := one[int](t, db.Pool, "select count(*) from outbox.failure as f join outbox.message as m using (id) where m.namespace = $1", fmt.Sprint("dead", i))
		t.Logf("dead%d: %d attempts", i, attempts)
		if most := 2*slots + 10; attempts > most || attempts < 5 {
			t.Errorf("dead%d got %d attempts until it was held, want 5 to %d", i, attempts, most)
		}
	}
}

// A node is killed with the probe: the message is rescued as any other, and another probe is tried.
func TestNodeIsKilledWithTheProbe(t *testing.T) {
	t.Parallel()
	db := setUp(t, holdForLong+`; select outbox.configure('{"lease": "10 min"}'); select outbox.hold('ns', 'q', '1 h')`)
	fill(t, db.Pool, "ns", "q", 20, 1)
	first := startSweep(t, db.DSN, "n1", "--sink", "exec:sleep 1000")
	endHolds(t, db.Pool)
	await(t, db.Pool, "select exists (select from outbox.claimed as c join outbox.destination as d on (d.probe_id, d.probe_token) = (c.id, c.claim_token))")
	first.signal(t, syscall.SIGKILL)
	<-first.done
	startSweep(t, db.DSN, "n2", "--sink", "exec:true")
	await(t, db.Pool, "select count(*) > 0 from outbox.shard where node = 'n2'")
	if n := one[int](t, db.Pool, "select count(*) from outbox.claimed"); n != 1 {
		t.Errorf("%d messages are claimed, want the dead node's probe", n)
	}
	expire(t, db.Pool, "ns")
	await(t, db.Pool, "select state <> 'held' from outbox.destination where namespace = 'ns'")
	recovered(t, db.Pool)
	await(t, db.Pool, "select count(*) = 20 from outbox.settled where outcome = 'done'")
}

// A node that cron starts ends when all but what is held is done, and without an error: what is held waits for a later one.
func TestOnceBesideADeadDestination(t *testing.T) {
	t.Parallel()
	db := setUp(t, holdForLong)
	fill(t, db.Pool, "dead", "q", 200, 1)
	fill(t, db.Pool, "live", "q", 100, 1)
	sweep(t, db.DSN, "once", "--slots", "4", "--spare", "0",
		"--sink", `exec:sh -c 'case $FAIRCLAIM_NAMESPACE in dead*) exit 69;; esac'`)
	wantOutcomes(t, db.Pool, map[string]int{"done": 100, "pending": 200})
	if got := heldNow(t, db.Pool); fmt.Sprint(got) != "[dead/q]" {
		t.Errorf("held are %v", got)
	}
	if n := one[int](t, db.Pool, "select count(*) from outbox.failure"); n > 4+10 {
		t.Errorf("%d attempts", n)
	}
}
