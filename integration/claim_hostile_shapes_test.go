package integration

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// hostileRows is how large the shapes are that grow without a limit. FAIRCLAIM_HOSTILE_ROWS=1000000
// makes them as large as a claim must stand; that takes minutes.
func hostileRows(t *testing.T) int {
	t.Helper()
	text := cmp.Or(os.Getenv("FAIRCLAIM_HOSTILE_ROWS"), "100000")
	n, err := strconv.Atoi(text)
	if err != nil || n < 100 {
		t.Fatalf("FAIRCLAIM_HOSTILE_ROWS is %q: want a number of messages, 100 or more", text)
	}
	return n
}

// hostileNamespaces is a query for the rows of a fill: so many namespaces of one message each.
func hostileNamespaces(n int, shard string) string {
	return fmt.Sprintf(`select 'other ' || n as namespace, 'held' as task_queue, %s as shard from generate_series(1, %d) as n`, shard, n)
}

// hostileShapes are those of messages that wait, and of tenants that cannot go.
func hostileShapes(rows int) map[string]hostileShape {
	return map[string]hostileShape{
		"future messages of 200,000 namespaces": {
			make: func(t *testing.T, h *hostileRun) {
				hostileFill(t, h.other, hostileNamespaces(200000, "null::int"), `now() + interval '1 day'`)
			},
			extra: hostileNothing,
		},
		"future messages in 410,000 lanes": {
			make: func(t *testing.T, h *hostileRun) {
				hostileFill(t, h.other, `select 'other ' || n as namespace, 'q' || q as task_queue, s as shard
					from generate_series(1, 400) as n, generate_series(1, 64) as q, generate_series(0, 15) as s`, `now() + interval '1 day'`)
			},
			extra: hostileNothing,
		},
		"10,000 namespaces of quota 0":  hostileNoQuota(10000),
		"200,000 namespaces of quota 0": hostileNoQuota(200000),
		"10,000 namespaces at their ceiling": {
			settings: `{"default_quota": 1}`, blocked: 10000, extra: hostileDescents,
			make: hostileAtCeiling,
		},
		"10,000 paused namespaces": {
			blocked: 10000, extra: hostileDescents,
			make: func(t *testing.T, h *hostileRun) {
				hostileFill(t, h.other, hostileNamespaces(10000, "null::int"), hostilePast)
				run(t, h.other, `select outbox.pause('other ' || n) from generate_series(1, 10000) as n`)
			},
		},
		"10,000 held namespaces":  hostileHeld(10000),
		"200,000 held namespaces": hostileHeld(200000),
		"10,000 namespaces of a held route": {
			blocked: 10000, extra: hostileDescents,
			make: func(t *testing.T, h *hostileRun) {
				hostileFill(t, h.other, hostileNamespaces(10000, "null::int"), hostilePast)
				run(t, h.other, `select outbox.hold(null, 'held')`)
			},
		},
		"namespaces of a paused route": {
			blocked: rows / 5, extra: hostileDescents,
			make: func(t *testing.T, h *hostileRun) {
				hostileFill(t, h.other, hostileNamespaces(rows/5, "null::int"), hostilePast)
				run(t, h.other, `select outbox.pause(null, 'held')`)
			},
		},
		"10,000 namespaces on shards of others": {
			held: 8, blocked: 10000, extra: 16 * 1000, // 1,000 visits, each of which looks at its quota, its claimed ones, and three times at its lanes
			make: func(t *testing.T, h *hostileRun) {
				hostileFill(t, h.other, hostileNamespaces(10000, "8 + n % 8"), hostilePast)
			},
		},
		"a retry storm":         hostileRetries(false),
		"a retry storm, pinned": hostileRetries(true),
		"64 routes of 1,024 shards, every second one held": {
			settings: `{"shard_count": 1024}`, sparse: true, blocked: 1, extra: hostileDescents,
			make: hostileWide, then: hostileWideServed,
		},
	}
}

// hostileHeld: so many namespaces whose destinations are held, one in four with its time over and its probe out.
func hostileHeld(n int) hostileShape {
	return hostileShape{
		blocked: n, extra: hostileDescents,
		make: func(t *testing.T, h *hostileRun) {
			hostileFill(t, h.other, hostileNamespaces(n, "null::int"), hostilePast)
			run(t, h.other, `insert into outbox.claimed (id, namespace, task_queue, shard, visible_after, attempt, payload_bytes, claim_token, claimed_by, claimed_at, lease_until)
				select 100000000 + n, 'other ' || n, 'held', 1, now(), 1, 0, 1, 'x', now(), now() + interval '1 h' from generate_series(1, $1, 4) as n`, n)
			run(t, h.other, `insert into outbox.destination (namespace, task_queue, state, held_since, held_until, probe_id, probe_token, changed_at)
				select 'other ' || n, 'held', 'held', now(), case n % 4 when 1 then now() else 'infinity' end, 100000000 + n, 1, now() from generate_series(1, $1) as n`, n)
		},
	}
}

func hostileNoQuota(n int) hostileShape {
	return hostileShape{
		settings: `{"default_quota": 0}`, blocked: n, extra: hostileDescents,
		make: func(t *testing.T, h *hostileRun) {
			hostileFill(t, h.other, hostileNamespaces(n, "null::int"), hostilePast)
		},
	}
}

// hostileInstants are the shapes of many messages that come due at one instant, and of what a
// pinned horizon keeps of them.
func hostileInstants(rows int) map[string]hostileShape {
	instant := func(t *testing.T, h *hostileRun) { hostileInstant(t, h, rows) }
	return map[string]hostileShape{
		"due at one instant":         {make: instant, eligible: 1, ripens: 1, claims: 20, extra: hostileRipening},
		"due at one instant, pinned": {make: instant, eligible: 1, ripens: 1, claims: 20, pinned: true, extra: hostileRipening},
		"came due under a quota of 0, pinned": {
			blocked: 1, claims: 9, extra: hostileNothing, most: true,
			make: func(t *testing.T, h *hostileRun) {
				run(t, h.other, `select outbox.set_quota('other 1', 0)`)
				ripe := `true`
				if hostileRipens(t, h.other) {
					ripe = `not exists (select from outbox.pending as p where not p.ripe and p.visible_after <= clock_timestamp())`
				}
				hostileDrain(t, h, rows/4, hostileBatch, ripe)
			},
		},
		"came due and was delivered, pinned": { // what this costs has no bound yet
			detours: true,
			make: func(t *testing.T, h *hostileRun) {
				run(t, h.other, `select outbox.set_quota('other 1', 10000)`)
				hostileDrain(t, h, rows/4, 10000, `not exists (select from outbox.messages as m where m.namespace = 'other 1' and m.status <> 'done')`)
			},
		},
	}
}

// hostileInstant: one tenant's messages are all due at one instant, and the quiet tenant's one a
// millisecond later.
func hostileInstant(t *testing.T, h *hostileRun, rows int) {
	hostileDue(t, h, fmt.Sprintf(`select 'other 1' as namespace, 'q' as task_queue, %s as shard from generate_series(1, %d) as k`,
		h.someShard("k"), rows))
}

// hostileDue fills in rows that come due at one instant, and a message of the quiet tenant that does so
// a millisecond later; and waits for that.
func hostileDue(t *testing.T, h *hostileRun, rows string) {
	t.Helper()
	tx := begin(t, h.other)
	hostileFill(t, tx, rows, `now() + interval '1 ms'`)
	hostileFill(t, tx, `select 'quiet' as namespace, 'q' as task_queue, `+h.someShard("0")+` as shard`, `now() + interval '2 ms'`)
	due := one[time.Time](t, tx, `select now() + interval '2 ms'`)
	commit(t, tx)
	h.quiet++
	await(t, h.other, `select clock_timestamp() >= $1`, due)
}

// hostileDrain makes the shape of hostileInstant, and lets the node claim under a pinned horizon until
// done says true; without the busy tenants, whose dead rows are not what is measured here.
func hostileDrain(t *testing.T, h *hostileRun, rows, batch int, done string) {
	t.Helper()
	messages := h.quiet
	hostileInstant(t, h, rows)
	h.pin(t)
	run(t, h.other, `select outbox.set_quota(n, 0) from unnest($1::text[]) as n`, longNames("busy ", hostileBusy))
	claims := 0
	for over := false; !over; over = one[bool](t, h.other, `select `+done) {
		if claims > 100+rows/100 {
			t.Fatalf("%d claims have not come past %d messages", claims, rows)
		}
		for range 5 {
			h.claim(t, batch)
			claims++
		}
	}
	worst := 0
	if batch == hostileBatch {
		worst = slices.Max(h.cost)
	}
	t.Logf("%d claims of %d came past %d messages, with %d buffers each at most", claims, batch, rows, worst)
	if worst > hostileRipening {
		t.Errorf("INV-18: a claim touched %d buffers while messages came due, want %d at most", worst, hostileRipening)
	}
	h.cost = nil
	h.quiet = messages // that message is claimed by now: the next one is measured
	run(t, h.other, `select outbox.set_quota(n, 256) from unnest($1::text[]) as n`, longNames("busy ", hostileBusy))
}

// hostileWide: one tenant has messages in every lane there can be, the due ones on shards of others.
func hostileWide(t *testing.T, h *hostileRun) {
	hostileFill(t, h.other, `select 'other 1' as namespace, 'q' || q as task_queue, s as shard
		from generate_series(1, 64) as q, generate_series(0, 1023) as s`,
		`case when r.shard % 2 = 1 then `+hostilePast+` else now() + interval '1 day' end`)
}

// hostileWideServed: the one message of that tenant that can go is found, however many claims
// share the way over its lanes: one claim comes past a route at least.
func hostileWideServed(t *testing.T, h *hostileRun) {
	hostileFill(t, h.other, `select 'other 1' as namespace, 'q64' as task_queue, 1022 as shard`, hostilePast)
	for claims := 1; claims <= 64; claims++ {
		rows := h.claim(t, hostileBatch)
		if shape, _ := hostileApart(rows); len(shape) > 0 {
			t.Logf("%d claims until the message in the last lane is served", claims)
			return
		}
	}
	t.Error("INV-18: the message in the last of 65,536 lanes was not served in 64 claims")
}

// hostileAtCeiling: 10,000 namespaces with a quota of 1 have two messages each, and one of them
// is claimed.
func hostileAtCeiling(t *testing.T, h *hostileRun) {
	hostileFill(t, h.other, fmt.Sprintf(`select x.* from (%s) as x, generate_series(1, 2)`, hostileNamespaces(10000, "null::int")), hostilePast)
	hostileTake(t, h, 10000)
}

// hostileTake claims so many of the shape's messages by another node.
func hostileTake(t *testing.T, h *hostileRun, want int) []modelClaimed {
	t.Helper()
	var all []modelClaimed
	for range 40 {
		all = append(all, claimOn(t, h.other, "other node", h.shards, 10000)...)
		if shape, rest := hostileApart(all); len(shape) == want {
			settleAll(t, h.other, "release", rest)
			return shape
		}
	}
	t.Fatalf("%d messages claimed, want %d of the shape's among them", len(all), want)
	return nil
}

// hostileApart parts what the shape's tenants got from what all others did.
func hostileApart(rows []modelClaimed) (shape, rest []modelClaimed) {
	for _, r := range rows {
		if strings.HasPrefix(r.Namespace, "other ") {
			shape = append(shape, r)
		} else {
			rest = append(rest, r)
		}
	}
	return shape, rest
}

// hostileRetries is a storm of retries, in which each claim brings a message of each of 100 more tenants.
// It makes ripe what the last claim gave back, and what else has come due since.
func hostileRetries(pinned bool) hostileShape {
	return hostileShape{
		settings: `{"max_attempts": 1000}`, make: hostileStorm, settle: hostileFailAgain,
		eligible: 100, claims: 30, pinned: pinned, extra: hostileDescents + 2*hostileBatch*hostileRow,
	}
}

// hostileStorm: 10,000 messages of 100 tenants have failed and wait for their backoff.
func hostileStorm(t *testing.T, h *hostileRun) {
	hostileFill(t, h.other, `select 'other ' || n as namespace, 'q' as task_queue, null::int as shard
		from generate_series(1, 100) as k, generate_series(1, 100) as n`, hostilePast)
	hostileRetry(t, h, hostileTake(t, h, 10000), `k * interval '100 ms'`)
}

// hostileFailAgain: each message of the storm that is claimed fails again, and is due before the
// next claim.
func hostileFailAgain(t *testing.T, h *hostileRun, rows []modelClaimed) {
	shape, rest := hostileApart(rows)
	settleAll(t, h.other, "complete", rest)
	hostileRetry(t, h, shape, `'1 ms'::interval`)
}

// hostileRetry gives messages back after a failed attempt, with a delay that may depend on the
// number k of each.
func hostileRetry(t *testing.T, h *hostileRun, rows []modelClaimed, delay string) {
	t.Helper()
	if len(rows) == 0 {
		return
	}
	var ids, tokens []int64
	for _, r := range rows {
		ids, tokens = append(ids, r.ID), append(tokens, r.Token)
	}
	if n := one[int](t, h.other, fmt.Sprintf(`select count(*)::int from outbox.retry($1::bigint[], $2, null,
		array(select %s from generate_series(1, cardinality($1::bigint[])) as k)) as r`, delay), ids, tokens); n != len(rows) {
		t.Fatalf("%d of %d messages were given back", n, len(rows))
	}
}
