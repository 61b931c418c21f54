package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/driver/node"
)

// goBack makes a database what it may be after a fail-over to a standby that had not got all:
// the messages are gone, and their ids and claim tokens are about to be drawn again.
func goBack(t testing.TB, q querier) {
	t.Helper()
	run(t, q, "delete from outbox.claimed")
	run(t, q, "delete from outbox.message")
	run(t, q, "delete from outbox.walk")
	run(t, q, "select setval('outbox.message_id_seq', 1, false), setval('outbox.claim_token', 1, false)")
}

// INV-9: a database that goes back in time draws ids and tokens again, and what a node has
// claimed before settles nobody else's message.
func TestSettleAfterTheDatabaseWentBack(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	for how := range settles {
		put(t, conn, "before", "q", "before "+how)
		old := claimOne(t, conn, "n1")
		goBack(t, conn)
		put(t, conn, "after", "q", "after "+how)
		fresh := claimOne(t, conn, "n2")
		if fresh.ID != old.ID {
			t.Fatalf("the new message has id %d, the old one had %d", fresh.ID, old.ID)
		}
		if settle(t, conn, how, old.ID, old.Token) {
			t.Errorf("INV-9: %s of a claim from before settled somebody else's message", how)
		}
		if !settle(t, conn, how, fresh.ID, fresh.Token) {
			t.Errorf("INV-9: %s of the claim that holds is lost", how)
		}
		goBack(t, conn)
		run(t, conn, "delete from outbox.pending; delete from outbox.settled")
	}
}

// A heartbeat with a token that this database has not drawn yet moves the sequence past it,
// once, and check() tells; later tokens are larger.
func TestHeartbeatMovesTokensOn(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	put(t, conn, "n", "q", "a")
	seen := claimOne(t, conn, "n1").Token
	beat := func(token int64) bool {
		t.Helper()
		return one[bool](t, conn, "select went_back from outbox.heartbeat('n1', seen_token => $1)", token)
	}
	if beat(seen) || beat(0) || beat(-1) || one[bool](t, conn, "select went_back from outbox.heartbeat('n1')") {
		t.Error("a token that was drawn is taken for one that was not")
	}
	seen += 1000 << 22
	if !beat(seen) || beat(seen) {
		t.Error("the first heartbeat with a later token tells that the database went back, and it alone")
	}
	put(t, conn, "n", "q", "b")
	if row := claimOne(t, conn, "n2"); row.Token <= seen {
		t.Errorf("INV-9: claimed with token %d after %d was seen", row.Token, seen)
	}
	told := list[string](t, conn, "select concat_ws(' ', guarantee, subject, detail) from outbox.check()")
	if len(told) != 1 || !strings.Contains(told[0], "INV-2 database went back in time") || !strings.Contains(told[0], fmt.Sprint(seen)) {
		t.Errorf("check tells %q", told)
	}
	run(t, conn, "update outbox.went_back set at = at - interval '31 days'; select outbox.prune()")
	if n := one[int](t, conn, "select count(*) from outbox.went_back"); n != 0 {
		t.Error("the note outlives its 30 days")
	}
	_, err := conn.Exec(t.Context(), "select outbox.heartbeat('n1', seen_token => 9223372036854775807)")
	wantError(t, err, "OB001", "seen_token")
}

// Of two heartbeats at once, none sets the tokens lower than the other.
func TestHeartbeatsMoveTokensOnTogether(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	first, second := begin(t, db.Connect(t)), impatient(t, db.Connect(t))
	const lower, higher = 100 << 22, 200 << 22
	beat := func(q querier, node string, token int64) bool {
		t.Helper()
		return one[bool](t, q, "select went_back from outbox.heartbeat($1, seen_token => $2)", node, token)
	}
	if !beat(first, "n1", higher) {
		t.Fatal("the first one moves nothing")
	}
	if beat(second, "n2", lower) {
		t.Error("the second one moves the tokens back")
	}
	commit(t, first)
	if beat(second, "n2", lower) || one[int64](t, second, "select last_value from outbox.claim_token") < higher {
		t.Error("the tokens are lower after the second heartbeat")
	}
}

// INV-4: below an edge that a walk remembers no claim is made, wherever the sequence stands.
func TestNoClaimBelowAnEdge(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	run(t, conn, "select outbox.set_quota('n', 2)")
	for i := range 4 {
		put(t, conn, "n", "q", fmt.Sprint(i))
	}
	row := claim(t, conn, "n1", 1)[0]
	run(t, conn, "select outbox.complete($1, $2)", []int64{row.ID}, []int64{row.Token})
	claim(t, conn, "n1", 1) // its edge is past the first claim now
	run(t, conn, "select setval('outbox.claim_token', 1, false)")
	if got := len(claim(t, conn, "n2", 10)) + len(claim(t, conn, "n1", 10)); got != 1 {
		t.Errorf("INV-4: %d claimed beside one, the quota is 2", got)
	}
	wantNone(t, conn)
}

// A node that has two messages with one id in its hands, of before and after the database
// went back, settles the one whose claim holds.
func TestNodeWithTwoMessagesOfOneID(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	run(t, db.Pool, `select outbox.configure('{"lease": "1 h"}')`) // so that no extend tells which is lost
	run(t, db.Pool, "select nextval('outbox.claim_token') from generate_series(1, 100)")
	put(t, db.Pool, "before", "q", "before")
	sink := newHanging()
	n := startNode(t, newNode(t, db, sink, func(c *node.Config) { c.Slots, c.Share = 2, 1 }))
	eventually(t, "the first one is under way", func() bool { return len(sink.begun) == 1 })
	goBack(t, db.Pool)
	put(t, db.Pool, "after", "q", "after")
	eventually(t, "the second one is under way", func() bool { return len(sink.begun) == 2 })
	await(t, db.Pool, "select count(*) = 1 from outbox.went_back where node = 'n1'")
	close(sink.let)
	eventually(t, "both are answered for", func() bool { s := n.Stats(); return s.Done+s.Lost == 2 })
	if s := n.drained(t); s.Done != 1 || s.Lost != 1 {
		t.Errorf("stats are %+v, want one done and one lost", s)
	}
	if s := one[string](t, db.Pool, "select dispatch_key || ' ' || status from outbox.messages"); s != "after done" {
		t.Errorf("left is %q", s)
	}
}

// wantNone fails if check() finds anything.
func wantNone(t testing.TB, q querier) {
	t.Helper()
	if told := list[string](t, q, "select concat_ws(' ', guarantee, subject, detail) from outbox.check()"); len(told) > 0 {
		t.Errorf("check finds %q", told)
	}
}

// INV-9: tokens that are drawn while a heartbeat moves the sequence on are not drawn again: the
// sequence never goes down.
func TestTokensDrawnBesideAHeartbeat(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	// Claims draw between what the heartbeat reads of the sequence and what it sets.
	text, err := os.ReadFile("../sql/functions/pass_token.sql")
	if err != nil {
		t.Fatal(err)
	}
	const set = "  perform setval("
	if strings.Count(string(text), set) != 1 {
		t.Fatalf("pass_token.sql does not set the sequence once")
	}
	drawn := "  perform nextval('outbox.claim_token') from generate_series(1, 50);\n" + set
	run(t, conn, strings.Replace(string(text), set, drawn, 1), pgx.QueryExecModeSimpleProtocol)
	before := one[int64](t, conn, "select last_value from outbox.claim_token")
	run(t, conn, "select outbox.heartbeat('n1', seen_token => $1)", before+2*4194304)
	if after := one[int64](t, conn, "select last_value from outbox.claim_token"); after < before+50*4194304 {
		t.Errorf("INV-9: the sequence stands at %d after 50 claims from %d on", after, before)
	}
}

// A lift of before the database went back has a larger token than what is claimed now, and makes nothing of that old:
// what fails counts and is charged (INV-16).
func TestWentBackBehindALift(t *testing.T) {
	t.Parallel()
	db := setUp(t, "select outbox.enqueue('n', 'q', 'k', ''), outbox.hold('n', 'q'), outbox.lift('n', 'q')")
	run(t, db.Pool, "update outbox.destination set lifted_at = now() - interval '1 h', lift_token = 9000000000000000000")
	row := claimOne(t, db.Pool, "n1")
	run(t, db.Pool, "select outbox.fail_destination(array[$1::bigint], array[$2::bigint], '{unreachable}')", row.ID, row.Token)
	if got := one[int](t, db.Pool, "select attempt from outbox.pending"); got != 1 {
		t.Errorf("the message is pending with attempt %d, want 1", got)
	}
	run(t, db.Pool, "select outbox.observe('{n}', '{q}')")
	if got := one[int](t, db.Pool, "select score from outbox.destination"); got != 4 {
		t.Errorf("the destination has a score of %d, want 4", got)
	}
}
