package integration

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

// crashLedger is what the clients of a server were told before it died: a message is in
// it with the last state that a commit confirmed, and with none while it is not known
// whether a commit came through.
type crashLedger struct {
	mu    sync.Mutex
	state map[int64]string
}

func (l *crashLedger) set(state string, ids ...int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		l.state[id] = state
	}
}

func (l *crashLedger) sure() map[int64]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	sure := map[int64]string{}
	for id, state := range l.state {
		if state != "" {
			sure[id] = state
		}
	}
	return sure
}

// crashFault is an answer that must not be.
type crashFault string

func (f crashFault) Error() string { return string(f) }

// crashWork enqueues, claims and settles until the server dies.
func crashWork(ctx context.Context, dsn string, session int, ledger *crashLedger) error {
	rng := rand.New(rand.NewPCG(uint64(session), 7))
	return hammerLoop(ctx, dsn, time.Now().Add(patience()), "", func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, `select e.id from generate_series(1, 10) as n cross join lateral outbox.enqueue(
			'ns' || n % 4, 'q', gen_random_uuid()::text, '') as e(id)`)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			return err
		}
		ledger.set("pending", ids...) // or further: others may have it by now
		claimed, err := modelClaimRows(ctx, conn, fmt.Sprint("node", session), rng.Perm(16)[:8], 10, 0)
		if err != nil {
			return err
		}
		var mine, tokens []int64
		for _, c := range claimed {
			mine = append(mine, c.ID)
			tokens = append(tokens, c.Token)
		}
		if len(mine) == 0 {
			return nil
		}
		ledger.set("", mine...) // until the answer is here
		how, state := "complete", "done"
		if rng.IntN(4) == 0 {
			how, state = "fail", "failed"
		}
		var n int
		if err := conn.QueryRow(ctx, fmt.Sprintf(`select count(*) from outbox.%s($1, $2) as x`, how), mine, tokens).Scan(&n); err != nil {
			return err
		}
		if n != len(mine) {
			return crashFault(fmt.Sprintf("INV-9: %s settled %d of %d of its own claims", how, n, len(mine)))
		}
		ledger.set(state, mine...)
		return nil
	})
}

// TestCrashServer kills PostgreSQL in the middle of enqueues, claims and settles. After
// the restart every message that was confirmed is there once, what was confirmed as
// settled is settled, and all else can still be claimed and settled (INV-2).
func TestCrashServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	cluster, err := pgtest.Open(ctx, pgtest.Options{Durable: true}, func(ctx context.Context, dsn string) error {
		_, err := migrations.Up(ctx, dsn, migrations.Options{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cluster.Close(context.Background()) })
	db := cluster.New(t)
	ledger := &crashLedger{state: map[int64]string{}}
	for round := range 2 {
		crashOnce(t, cluster, db, ledger)
		crashAccount(t, db, ledger)
		t.Logf("crash %d: %d messages", round+1, len(ledger.sure()))
	}
	conn := db.Connect(t)
	run(t, conn, `update outbox.claimed as c set lease_until = '2020-01-01'; select outbox.rescue(100000)`)
	for rows := claimOn(t, conn, "last", longShards(), 1000); len(rows) > 0; rows = claimOn(t, conn, "last", longShards(), 1000) {
		if n := settleAll(t, conn, "complete", rows); n != len(rows) {
			t.Fatalf("completed %d of %d", n, len(rows))
		}
	}
	if n := one[int](t, conn, `select (select count(*) from outbox.message)::int - (select count(*) from outbox.settled)::int`); n != 0 {
		t.Errorf("INV-2: %d messages cannot be settled", n)
	}
	crashAccount(t, db, ledger)
}

// crashOnce kills the server once its clients are well under way, and starts it again.
func crashOnce(t *testing.T, cluster *pgtest.Cluster, db *pgtest.DB, ledger *crashLedger) {
	t.Helper()
	ctx, before := t.Context(), len(ledger.sure())
	var clients sync.WaitGroup
	for session := range 6 {
		clients.Go(func() {
			// Any other error is the end of the server.
			if fault := crashFault(""); errors.As(crashWork(ctx, db.DSN, session, ledger), &fault) {
				t.Error(fault)
			}
		})
	}
	eventually(t, "the clients are under way", func() bool { return len(ledger.sure()) > before+300 })
	if err := cluster.Server().Kill(ctx); err != nil {
		if errors.Is(err, errors.ErrUnsupported) {
			t.Skip("this server is not ours to kill")
		}
		t.Fatal(err)
	}
	clients.Wait()
	if err := cluster.Server().Restart(ctx); err != nil {
		t.Fatal(err)
	}
}

func crashAccount(t *testing.T, db *pgtest.DB, ledger *crashLedger) {
	t.Helper()
	conn := db.Connect(t)
	if err := hammerAccount(t.Context(), conn); err != nil {
		t.Error(err)
	}
	rows, err := conn.Query(t.Context(), `select m.id, coalesce(s.outcome, '') from outbox.message as m left join outbox.settled as s on s.id = m.id`)
	if err != nil {
		t.Fatal(err)
	}
	found := map[int64]string{}
	var id int64
	var outcome string
	if _, err := pgx.ForEachRow(rows, []any{&id, &outcome}, func() error {
		found[id] = outcome
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for id, state := range ledger.sure() {
		outcome, ok := found[id]
		if !ok {
			t.Errorf("INV-2: message %d was confirmed and is gone", id)
		}
		if state != "pending" && outcome != state {
			t.Errorf("INV-2: message %d was confirmed as %s and is %q", id, state, outcome)
		}
	}
}
