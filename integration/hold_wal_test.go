package integration

import (
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5"
)

// walOf is what a statement writes to the WAL, what is nested in it included.
func walOf(t *testing.T, conn *pgx.Conn, sql string) (records, bytes int) {
	t.Helper()
	var plans []struct {
		Plan struct {
			Records int `json:"WAL Records"`
			Bytes   int `json:"WAL Bytes"`
			Images  int `json:"WAL FPI"`
		}
	}
	if err := json.Unmarshal([]byte(one[string](t, conn, "explain (analyze, wal, format json) "+sql)), &plans); err != nil {
		t.Fatal(err)
	}
	p := plans[0].Plan
	return p.Records, p.Bytes - p.Images*8192 // images of pages come once after each checkpoint
}

// An outage writes a claim's worth for each probe, whatever waits behind it; a claim while all is held writes
// nothing (INV-16, INV-8).
func TestOutageWrites(t *testing.T) {
	t.Parallel()
	const probes = 40
	outage := func(backlog int) (records, bytes int) {
		db := setUp(t, "")
		conn := db.Connect(t)
		run(t, conn, `select count(*) from outbox.enqueue_batch(array_fill('dead'::text, array[$1::int]), array_fill('q'::text, array[$1::int]),
			array(select 'd' || i from generate_series(1, $1::int) as i), array_fill(''::bytea, array[$1::int]))`, backlog)
		run(t, conn, `vacuum analyze`)
		run(t, conn, `select outbox.hold('dead', 'q', '1 hour')`)
		claim := `select count(*) from outbox.claim_fair('n', outbox.all_shards(), 10)`
		run(t, conn, claim) // the walk of a new node is written
		for range 3 {
			if records, _ := walOf(t, conn, claim); records != 0 {
				t.Errorf("INV-16: a claim beside %d messages that are held writes %d records", backlog, records)
			}
		}
		for range probes {
			holdOver(t, conn)
			for _, sql := range []string{
				claim,
				`select count(*) from (select array_agg(c.id) as ids, array_agg(c.claim_token) as tokens from outbox.claimed as c) as c
				 cross join lateral outbox.fail_destination(c.ids, c.tokens, '{unreachable}', '{connection refused}') as f`,
				`select count(*) from outbox.observe('{dead}', '{q}')`,
			} {
				r, b := walOf(t, conn, sql)
				records, bytes = records+r, bytes+b
			}
		}
		if n := one[int](t, conn, `select count(*) from outbox.pending where attempt > 0`); n > 1 {
			t.Errorf("INV-8: %d messages have paid for the outage", n)
		}
		return records, bytes
	}
	few, fewBytes := outage(500)
	many, manyBytes := outage(20_000)
	t.Logf("WAL a probe: %d records, %d bytes beside 500 messages; %d records, %d bytes beside 20,000", few/probes, fewBytes/probes, many/probes, manyBytes/probes)
	if many > few+few/4 {
		t.Errorf("INV-16: %d probes write %d records beside 20,000 messages, and %d beside 500", probes, many, few)
	}
}
