package integration

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

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
