package integration

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// badTime is how long a trouble lasts; $FAIRCLAIM_BAD_TIME makes it longer. The default is
// two leases.
func badTime(t testing.TB) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(cmp.Or(os.Getenv("FAIRCLAIM_BAD_TIME"), (2 * badLease()).String()))
	if err != nil {
		t.Fatalf("FAIRCLAIM_BAD_TIME: %v", err)
	}
	return d
}

// badDay is an outbox, processes of `sweep run` that work on it, and a web server that
// they deliver to.
type badDay struct {
	t     *testing.T
	db    *pgtest.DB
	hooks *hooks

	mu   sync.Mutex
	keys []string      // enqueued
	late time.Duration // longest that a lease had expired and nobody had rescued the message

	stalled time.Duration // longest that the machine did not let this process run
}

// badLease is how long a lease lasts on a bad day. A node extends its leases four times as
// often.
func badLease() time.Duration { return scaled(2 * time.Second) }

func newBadDay(t *testing.T, db *pgtest.DB) *badDay {
	t.Helper()
	run(t, db.Pool, `select outbox.configure('{"node_lapse": "3 s", "claim_idle_timeout": "1 s", "retry_base": "100 ms", "retry_cap": "200 ms"}')`)
	configureLease(t, db.Pool, badLease())
	b := &badDay{t: t, db: db, hooks: newHooks(t)}
	b.watchMachine()
	return b
}

// watchMachine measures until the end of the test for how long the machine does not let a
// process run that has something to do.
func (b *badDay) watchMachine() {
	const every = 20 * time.Millisecond
	tick := time.NewTicker(every)
	ended, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for last := time.Now(); ; {
			select {
			case <-ended:
				return
			case <-tick.C:
			}
			now := time.Now()
			b.mu.Lock()
			b.stalled = max(b.stalled, now.Sub(last)-every)
			b.mu.Unlock()
			last = now
		}
	}()
	b.t.Cleanup(func() { close(ended); <-over; tick.Stop() })
}

// sweepProcess is a process of `sweep run`.
type sweepProcess struct {
	name string
	cmd  *exec.Cmd
	log  *lockedBuffer
	done chan struct{} // closed when it has ended
}

// node starts a node that connects as dsn says, and has all shards: two share the work, and
// none waits for another to lapse. It is killed when the test ends.
func (b *badDay) node(name, dsn string, args ...string) *sweepProcess {
	b.t.Helper()
	return b.nodeOf(sweepBinary(b.t), name, dsn, nil, args...)
}

// nodeOf is node with another binary and more environment.
func (b *badDay) nodeOf(binary, name, dsn string, env []string, args ...string) *sweepProcess {
	b.t.Helper()
	p := &sweepProcess{name: name, log: &lockedBuffer{}, done: make(chan struct{})}
	p.cmd = sweepCall{dsn: dsn, env: env, args: append([]string{
		"run", "--node", name, "--sink", b.hooks.server.URL + "/" + name, "--tick", "50ms", "--min-pause", "50ms", "--drain-timeout", patience().String(), "--shards", "0-15",
	}, args...)}.start(b.t)
	p.cmd.Path = binary
	p.cmd.Stderr = io.MultiWriter(p.log, b.t.Output())
	if err := p.cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // its state is looked at by those who ask
	}()
	b.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
	})
	return p
}

func (p *sweepProcess) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatalf("%v to %s: %v", s, p.name, err)
	}
	if s == syscall.SIGKILL {
		<-p.done
	}
}

// stop ends the node as its supervisor does; it must have lived until now.
func (p *sweepProcess) stop(t testing.TB) {
	t.Helper()
	select {
	case <-p.done:
		t.Fatalf("%s has ended by itself: %v", p.name, p.cmd.ProcessState)
	default:
	}
	eventually(t, p.name+" has started", func() bool { return strings.Contains(p.log.String(), "msg=sweeping") })
	p.signal(t, syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience()):
		t.Fatalf("%s does not end", p.name)
	}
	if !p.cmd.ProcessState.Success() {
		t.Errorf("%s ended with %v", p.name, p.cmd.ProcessState)
	}
}

// put enqueues n messages of each of four namespaces. While PostgreSQL is away it tries
// again: what an attempt had enqueued before its answer was cut off is a duplicate then.
func (b *badDay) put(ctx context.Context, n int) {
	var messages []driver.Message
	b.mu.Lock()
	for i := range 4 * n {
		key := fmt.Sprintf("k%d", len(b.keys))
		b.keys = append(b.keys, key)
		messages = append(messages, driver.Message{
			Namespace: fmt.Sprint("ns", i%4), TaskQueue: "q", DispatchKey: key, Payload: []byte("{}"),
		})
	}
	b.mu.Unlock()
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := driver.EnqueueBatch(call, b.db.Pool, messages)
		cancel()
		if err == nil {
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}

// feed enqueues a few messages all the while until stop is called, and looks for leases
// that have expired and that nobody rescues.
func (b *badDay) feed() (stop func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	var work sync.WaitGroup
	loop := func(every time.Duration, do func()) {
		work.Go(func() {
			for ctx.Err() == nil {
				do()
				select {
				case <-ctx.Done():
				case <-time.After(every):
				}
			}
		})
	}
	loop(50*time.Millisecond, func() { b.put(b.t.Context(), 1) })
	loop(100*time.Millisecond, func() {
		var seconds float64
		err := b.db.Pool.QueryRow(ctx, "select coalesce(extract(epoch from clock_timestamp() - min(lease_until)), 0) from outbox.claimed").Scan(&seconds)
		if err == nil {
			b.mu.Lock()
			b.late = max(b.late, time.Duration(seconds*float64(time.Second)))
			b.mu.Unlock()
		}
	})
	return func() { cancel(); work.Wait() }
}

// settled waits until nothing is left to do.
func (b *badDay) settled() {
	b.t.Helper()
	eventually(b.t, "all is settled", func() bool {
		var left int
		err := b.db.Pool.QueryRow(b.t.Context(),
			"select (select count(*) from outbox.pending) + (select count(*) from outbox.claimed)").Scan(&left)
		return err == nil && left == 0
	})
}

// account checks that every message is there once and done (INV-2), was delivered, and
// at most so many of them more than once; and that no lease had expired for long, beside
// the time that PostgreSQL was away.
func (b *badDay) account(twice int, away time.Duration) {
	b.t.Helper()
	conn := b.db.Connect(b.t)
	if err := hammerAccount(b.t.Context(), conn); err != nil {
		b.t.Error(err)
	}
	for _, violation := range list[string](b.t, conn, "select x::text from outbox.check() as x") {
		b.t.Error(violation)
	}
	rows, _ := conn.Query(b.t.Context(), "select dispatch_key from outbox.messages where status = 'done'")
	done, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		b.t.Fatal(err)
	}
	if n := one[int](b.t, conn, "select count(*) from outbox.message"); n != len(b.keys) || len(done) != n {
		b.t.Errorf("INV-2: of %d messages %d are there and %d are done", len(b.keys), n, len(done))
	}
	again := 0
	for _, key := range done {
		begun, answered := b.hooks.of(key)
		if answered == 0 {
			b.t.Errorf("INV-2: %s is done and was never delivered", key)
		}
		if begun > 1 {
			again++
		}
	}
	b.mu.Lock()
	stalled := b.stalled
	b.mu.Unlock()
	b.t.Logf("%d messages, %d delivered more than once, a lease was over for %v at most; the machine stalled for %v", len(done), again, b.late, stalled)
	switch {
	case again <= twice:
	case stalled > badLease()/4: // so may the nodes have, and their leases expired
		b.t.Logf("%d messages more than %d were delivered more than once, which is no wonder on a machine that stalls", again-twice, twice)
	default:
		b.t.Errorf("%d messages were delivered more than once, want %d at most", again, twice)
	}
	if b.late > scaled(10*time.Second)+away {
		b.t.Errorf("a lease had expired %v ago, and nobody rescued the message", b.late)
	}
}

// quiet fails where a node has logged more than so many lines, or not each of the texts.
func (p *sweepProcess) quiet(t testing.TB, most int, texts ...string) {
	t.Helper()
	log := p.log.String()
	if n := strings.Count(log, "\n"); n > most {
		t.Errorf("%s logged %d lines, want %d at most", p.name, n, most)
	}
	for _, text := range texts {
		if !strings.Contains(log, text) {
			t.Errorf("the log of %s does not say %q", p.name, text)
		}
	}
}

// hooks is what nodes deliver to; the path's first part names the node.
type hooks struct {
	server *httptest.Server

	mu       sync.Mutex
	begun    map[string]int // by dispatch key: requests that came
	answered map[string]int // and those that were told 200
	by       map[string]int // requests that came, by node
	held     map[string]chan struct{}
}

func newHooks(t testing.TB) *hooks {
	h := &hooks{begun: map[string]int{}, answered: map[string]int{}, by: map[string]int{}, held: map[string]chan struct{}{}}
	h.server = httptest.NewServer(h)
	t.Cleanup(func() {
		h.mu.Lock()
		for node := range maps.Clone(h.held) {
			h.release(node)
		}
		h.mu.Unlock()
		h.server.CloseClientConnections()
		h.server.Close()
	})
	return h
}

func (h *hooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	node := strings.Split(r.URL.Path, "/")[1]
	key := r.Header.Get("Idempotency-Key")
	h.mu.Lock()
	h.begun[key]++
	h.by[node]++
	held := h.held[node]
	h.mu.Unlock()
	if held != nil {
		<-held
	}
	if r.Context().Err() != nil { // the node is dead
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answered[key]++
	w.WriteHeader(http.StatusOK)
}

// hold makes deliveries of a node wait until let is called.
func (h *hooks) hold(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held[node] = make(chan struct{})
}

func (h *hooks) let(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.release(node)
}

func (h *hooks) release(node string) {
	if held, ok := h.held[node]; ok {
		close(held)
		delete(h.held, node)
	}
}

func (h *hooks) of(key string) (begun, answered int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.begun[key], h.answered[key]
}

// from is how many deliveries a node has begun.
func (h *hooks) from(node string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.by[node]
}

// lockedBuffer is a bytes.Buffer for a writer and a reader.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
