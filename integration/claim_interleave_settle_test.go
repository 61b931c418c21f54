package integration

import (
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// TestInterleaveCancelClaim: a cancel waits for an open claim, cancels what it took, and
// the claim's settle is lost (INV-9).
func TestInterleaveCancelClaim(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 5, 1))
	conn := withoutWaiting(t, db.Connect(t))
	claim, operator := begin(t, conn), db.Connect(t)
	rows := claimOn(t, claim, "node", longShards(), 3)
	var was []string
	done := whileWaiting(t, db, operator, func() error {
		result, err := operator.Query(t.Context(), `select c.was from outbox.cancel(array(select m.dispatch_key from outbox.message as m)) as c`)
		if err == nil {
			was, err = pgx.CollectRows(result, pgx.RowTo[string])
		}
		return err
	})
	commit(t, claim)
	if err := done(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(was)
	if want := []string{"claimed", "claimed", "claimed", "pending", "pending"}; !slices.Equal(was, want) {
		t.Errorf("cancelled ones were %v, want %v", was, want)
	}
	for _, how := range []string{"complete", "retry", "fail", "release", "extend"} {
		if n := settleAll(t, conn, how, rows); n != 0 {
			t.Errorf("INV-9: %s settled %d cancelled messages", how, n)
		}
	}
	wantEachOnce(t, db)
}

// TestInterleaveCancelSettle: a cancel that comes after an open settle changes nothing.
func TestInterleaveCancelSettle(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"complete", "fail", "release", "retry"} {
		db := setUp(t, longBacklog(1, 1, 2, 1))
		worker, operator := withoutWaiting(t, db.Connect(t)), db.Connect(t)
		rows := claimOn(t, worker, "node", longShards(), 2)
		settle := begin(t, worker)
		if n := settleAll(t, settle, how, rows); n != 2 {
			t.Fatalf("%s settled %d", how, n)
		}
		cancelled := 0
		done := whileWaiting(t, db, operator, func() error {
			return operator.QueryRow(t.Context(), `select count(*) from outbox.cancel(array(select m.dispatch_key from outbox.message as m)) as c`).Scan(&cancelled)
		})
		commit(t, settle)
		if err := done(); err != nil {
			t.Fatal(err)
		}
		want := 0
		if how == "release" || how == "retry" {
			want = 2 // pending again by then
		}
		if cancelled != want {
			t.Errorf("%s, then cancel: %d cancelled, want %d", how, cancelled, want)
		}
		wantEachOnce(t, db)
	}
}

// TestInterleaveSettleBesideClaim: settles do not wait for open claims, and open claims
// not for settles (INV-11).
func TestInterleaveSettleBesideClaim(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 9, 1))
	worker, other := withoutWaiting(t, db.Connect(t)), withoutWaiting(t, db.Connect(t))
	rows := claimOn(t, worker, "node", longShards(), 6)
	wantClaimed(t, "beside", claimOn(t, begin(t, other), "node", longShards(), 1), 1)
	for i, how := range []string{"complete", "retry", "fail", "release", "extend"} {
		if n := settleAll(t, worker, how, rows[i:i+1]); n != 1 {
			t.Errorf("%s beside an open claim settled %d", how, n)
		}
	}
	settle := begin(t, worker)
	settleAll(t, settle, "complete", rows[5:])
	wantClaimed(t, "beside an open settle", claimOn(t, withoutWaiting(t, db.Connect(t)), "third", longShards(), 9), 0)
	wantEachOnce(t, db)
}

// TestInterleaveTerminate: a session that ends in the middle of a claim leaves nothing
// claimed and nothing locked (INV-2).
func TestInterleaveTerminate(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(2, 1, 5, 1))
	admin, b := db.Admin(t), withoutWaiting(t, db.Connect(t))
	for range 3 {
		victim := db.Connect(t)
		wantClaimed(t, "victim", claimOn(t, begin(t, victim), "node", longShards(), 4), 4)
		if !one[bool](t, admin, `select pg_terminate_backend($1, 20000)`, victim.PgConn().PID()) {
			t.Fatal("the session does not end")
		}
	}
	rows := claimOn(t, b, "node", longShards(), 100)
	wantClaimed(t, "all", rows, 10)
	for _, r := range rows {
		if r.Attempt != 1 {
			t.Errorf("INV-8: message %d has attempt %d", r.ID, r.Attempt)
		}
	}
	wantEachOnce(t, db)
}

// TestInterleaveIdle: a claim bounds how long its transaction may idle, for that
// transaction alone; a smaller bound of the session stays.
func TestInterleaveIdle(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 5, 1))
	const setting = `select current_setting('idle_in_transaction_session_timeout')`
	for before, within := range map[string]string{"0": "10s", "5s": "5s", "1500": "1500ms", "10s": "10s", "1min": "10s", "1d": "10s"} {
		conn := db.Connect(t, pgtest.Param("idle_in_transaction_session_timeout", before))
		at := one[string](t, conn, setting)
		tx := begin(t, conn)
		claimOn(t, tx, "node", longShards(), 1)
		if got := one[string](t, tx, setting); got != within {
			t.Errorf("with %s before, %s within the claim's transaction, want %s", before, got, within)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := one[string](t, conn, setting); got != at {
			t.Errorf("with %s before, %s after the transaction", at, got)
		}
	}
}

// TestInterleaveLeftOpen: a claim left open loses its session, and others go on (INV-11).
func TestInterleaveLeftOpen(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.configure('{"claim_idle_timeout": "100 ms"}');`+longBacklog(1, 1, 5, 1))
	b := withoutWaiting(t, db.Connect(t))
	wantClaimed(t, "left open", claimOn(t, begin(t, db.Connect(t)), "node", longShards(), 5), 5)
	eventually(t, "the claim left open ends", func() bool { return len(claimOn(t, b, "node", longShards(), 5)) == 5 })
}
