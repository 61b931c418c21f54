package integration

import (
	"fmt"
	"testing"
)

// TestHoldRouteBehindOthers: a claim that takes more of a namespace than it asked routes for comes to a half open one, too,
// wherever the route stands among the others: its probe goes within as many claims as there are routes (INV-16, INV-7).
func TestHoldRouteBehindOthers(t *testing.T) {
	t.Parallel()
	const routes = 4
	db := setUp(t, longBacklog(8, 1, 10, 1)+fmt.Sprintf(`; select outbox.configure('{"default_quota": 1000}');
		select outbox.pause(n.namespace) from outbox.namespaces as n;
		select outbox.enqueue('many', 'r' || n %% %d, 'many/' || n, '') from generate_series(1, 800) as n`, routes))
	conn := db.Connect(t)
	for _, of := range []string{"a namespace", "all"} {
		for i := range routes {
			queue := fmt.Sprint("r", i)
			run(t, conn, `delete from outbox.destination`)
			run(t, conn, `select outbox.hold(case when $1 then 'many' end, $2, '1 h')`, of != "all", queue)
			holdOver(t, conn)
			probes := 0
			for range routes {
				rows := claimOn(t, conn, "n", longShards(), 9)
				for _, r := range rows {
					if r.Pass == 0 {
						probes++
					}
				}
				wantClaimed(t, "in a claim with a half open route", rows, 9)
				for _, r := range rows {
					settleAll(t, conn, "release", []modelClaimed{r})
				}
			}
			if probes == 0 {
				t.Errorf("INV-16: route %s of %s is half open, and %d claims have tried nothing of it", queue, of, routes)
			}
		}
	}
}

// TestHoldProbesTakeTurns: the probes of a route of all are of one namespace after the other, so that one whose messages
// always break the endpoint does not keep it held for all (INV-16).
func TestHoldProbesTakeTurns(t *testing.T) {
	t.Parallel()
	const namespaces = 5
	for bad := range namespaces {
		db := setUp(t, longBacklog(namespaces, 1, 40, 1)+`; select outbox.hold(null, 'q1', '1 h')`)
		conn := db.Connect(t)
		name := fmt.Sprint("ns", bad+1)
		for n := 0; one[string](t, conn, `select d.state from outbox.destination as d where d.namespace is null`) == "held"; n++ {
			if n > namespaces {
				t.Fatalf("INV-16: %d probes in a row are of %s", n, name)
			}
			holdOver(t, conn)
			rows := claimOn(t, conn, "n", longShards(), 100)
			wantClaimed(t, "the probe", rows, 1)
			if rows[0].Namespace == name {
				holdFail(t, conn, "broken", rows...)
			} else {
				settleAll(t, conn, "complete", rows)
			}
			claimOn(t, conn, "reads", []int{0}, 1)
		}
	}
}

// TestHoldProbePassesTheCeiling: what a route of all lets through is not spent on a strict namespace that can take nothing,
// as its quota is claimed on shards of others (INV-16, INV-4).
func TestHoldProbePassesTheCeiling(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(8, 1, 40, 1)+`; select outbox.set_quota('ns' || n, 1, true) from generate_series(1, 7) as n`)
	conn := db.Connect(t)
	low, high := holdHalves()
	full := claimOn(t, conn, "other", high, 15)
	of := map[string]int{}
	for _, r := range full {
		of[r.Namespace]++
	}
	if len(of) != 8 {
		t.Fatalf("claimed of %d namespaces, want 8", len(of))
	}
	settleAll(t, conn, "complete", holdOf(full, "ns8"))
	run(t, conn, `select outbox.hold(null, 'q1', '1 h')`)
	holdOver(t, conn)
	rows := claimOn(t, conn, "n", low, 100)
	wantClaimed(t, "beside strict namespaces at their ceiling", rows, 1)
	wantClaimed(t, "of the one that has room", holdOf(rows, "ns8"), 1)
}

// TestHoldProbeFailsForItself: a probe that fails for its message's own reason is a dead letter, the hold stays, and the
// next message is tried at once. A message that always finds its destination busy is never charged, whatever its
// number of attempts, and is found by the reason of its last one, as docs/delivery.md says.
func TestHoldProbeFailsForItself(t *testing.T) {
	t.Parallel()
	db := setUp(t, longBacklog(1, 1, 3, 1)+`; select outbox.configure('{"max_attempts": 2}'), outbox.hold('ns1', 'q1', '1 h')`)
	conn := db.Connect(t)
	holdOver(t, conn)
	for range 2 {
		probe := claimOn(t, conn, "n", longShards(), 10)
		wantClaimed(t, "the probe", probe, 1)
		settleAll(t, conn, "fail", probe)
		if got := one[string](t, conn, `select m.status from outbox.messages as m where m.id = $1`, probe[0].ID); got != "failed" {
			t.Errorf("a probe that failed for its own reason is %s", got)
		}
		if got := one[string](t, conn, `select h.state from outbox.holds as h`); got != "probing" {
			t.Errorf("the destination is %s after it", got)
		}
	}
	for range 5 {
		holdOver(t, conn)
		probe := claimOn(t, conn, "n", longShards(), 10)
		wantClaimed(t, "the last message", probe, 1)
		holdFail(t, conn, "busy", probe...)
		run(t, conn, `update outbox.pending as p set visible_after = clock_timestamp() - interval '1 s', ripe = true`)
		claimOn(t, conn, "reads", []int{0}, 1)
	}
	if got := one[int](t, conn, `select count(*)::int from outbox.messages as m
		where m.namespace = 'ns1' and m.task_queue = 'q1' and m.status = 'pending' and m.attempt = 0 and m.error like '%(not charged: %'`); got != 1 {
		t.Errorf("%d messages that found their destination busy five times are found, uncharged and pending, want 1", got)
	}
}
