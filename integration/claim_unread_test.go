package integration

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// A claim whose client does not take in what it claimed, because it is frozen or its
// network is gone, keeps its shards for as long as claim_idle_timeout, and no longer: then
// it is undone, and others claim the rows (INV-1, INV-2).
func TestClaimNobodyReads(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"claim_idle_timeout": "1 s"}')`)
	fill(t, db.Pool, "ns", "q", 40, 1<<20) // more than the buffers on the way hold
	proxy := pgtest.NewProxy(t, db.DSN)
	conn, err := pgx.Connect(t.Context(), proxy.DSN(db.DSN))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	tx := begin(t, conn)
	ended := make(chan error, 1)
	hold := begin(t, db.Connect(t))
	run(t, hold, "lock table outbox.walk in exclusive mode") // until the way back is blocked
	go func() {
		rows, err := tx.Query(context.WithoutCancel(t.Context()), "select outbox.claim_fair('frozen', outbox.all_shards(), 100)")
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		ended <- err
	}()
	awaitBlocked(t, db.Pool, conn.PgConn().PID())
	proxy.Block(pgtest.FromServer)
	commit(t, hold)
	start := time.Now()
	eventually(t, "another node claims all", func() bool {
		claim(t, db.Pool, "awake", 100)
		return one[int](t, db.Pool, "select count(*) from outbox.claimed where claimed_by = 'awake'") == 40
	})
	t.Logf("after %v", time.Since(start))
	proxy.Block(0)
	if err := <-ended; err == nil {
		t.Error("the claim that nobody read has succeeded")
	}
}

// A claim without payloads brings those along that are small: all together 1 MiB at most, headers included. It leaves out
// what is larger, and what may have killed a node, which must not be read before the outbox is told.
func TestClaimSmallPayloads(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	for _, m := range []struct {
		key     string
		payload int
		headers map[string]string
	}{
		{"empty", 0, nil},
		{"small", 100, map[string]string{"a": "b"}},
		{"as large as may be", 1<<20/200 - 100, nil},
		{"too large", 1<<20/200 + 1, nil},
		{"far too large", 1 << 20, nil},
		{"headers too large", 10, map[string]string{"a": one[string](t, db.Pool, `select string_agg(md5(i::text), '') from generate_series(1, 300) as i`)}},
	} {
		_, err := driver.Enqueue(t.Context(), db.Pool, driver.Message{
			Namespace: "ns", TaskQueue: "q", DispatchKey: m.key, Payload: make([]byte, m.payload), Headers: m.headers,
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	put(t, db.Pool, "ns", "q", "suspect")
	run(t, db.Pool, `update outbox.pending set suspect = 1 where id = (select m.id from outbox.message as m where m.dispatch_key = 'suspect')`)
	fill(t, db.Pool, "rest", "q", 193, 1<<20/200-100)
	c, err := driver.Claim(t.Context(), db.Pool, driver.ClaimRequest{Node: "n1", Shards: one[[]int32](t, db.Pool, "select outbox.all_shards()"), Batch: 200, WithoutPayloads: true})
	if err != nil {
		t.Fatal(err)
	}
	leftOut := map[string]bool{"too large": true, "far too large": true, "headers too large": true, "suspect": true}
	sum := 0
	for _, m := range c.Deliveries {
		sum += len(m.Payload)
		switch {
		case (m.Payload == nil) != leftOut[m.DispatchKey]:
			t.Errorf("%q: the payload is nil: %t", m.DispatchKey, m.Payload == nil)
		case m.Payload != nil && int64(len(m.Payload)) != m.PayloadBytes:
			t.Errorf("%q has %d bytes, want %d", m.DispatchKey, len(m.Payload), m.PayloadBytes)
		case m.DispatchKey == "small" && m.Headers["a"] != "b" || m.Payload == nil && m.Headers != nil:
			t.Errorf("%q has the headers %v", m.DispatchKey, m.Headers)
		}
	}
	if len(c.Deliveries) != 200 || sum > 1<<20 {
		t.Errorf("claimed %d messages with %d bytes, want 200 with 1 MiB at most", len(c.Deliveries), sum)
	}
	if begun := one[int](t, db.Pool, "select count(*) from outbox.claimed where begun > 0"); begun != 0 {
		t.Errorf("%d have begun", begun)
	}
}

// payloadCalls counts the calls that read payloads.
type payloadCalls struct {
	*pgxpool.Pool
	made atomic.Int64
}

func (c *payloadCalls) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if strings.Contains(sql, "outbox.payloads") {
		c.made.Add(1)
	}
	return c.Pool.Query(ctx, sql, args...)
}

// A node delivers what came along with the claim, and reads the rest.
func TestNodeSmallPayloads(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ small, large, calls int }{
		"small ones":       {20, 0, 0},
		"large ones":       {0, 3, 1},
		"some of each one": {20, 3, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := setUp(t, "")
			fill(t, db.Pool, "small", "q", test.small, 100)
			fill(t, db.Pool, "large", "q", test.large, 400_000)
			var sink collector
			calls := &payloadCalls{Pool: db.Pool}
			s, err := node.New(calls, node.Config{Node: "n1", Sink: &sink, Batch: 50, Tick: 20 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Once(t.Context(), 0); err != nil {
				t.Fatal(err)
			}
			for _, m := range sink.messages() {
				if int64(len(m.Payload)) != m.PayloadBytes {
					t.Errorf("%s came with %d bytes, want %d", m.DispatchKey, len(m.Payload), m.PayloadBytes)
				}
			}
			if s := s.Stats(); s.Done != int64(test.small+test.large) || calls.made.Load() != int64(test.calls) || s.UsedBytes != 0 {
				t.Errorf("stats are %+v, payloads were read by %d calls, want %d", s, calls.made.Load(), test.calls)
			}
		})
	}
}
