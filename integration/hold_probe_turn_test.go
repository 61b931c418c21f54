package integration

import (
	"fmt"
	"slices"
	"testing"
)

// The probes of a route of all go round those who wait for it: else one whose own endpoint is broken could
// keep all others waiting for as long as it is (INV-16, INV-18). Whatever else is served meanwhile, and where the
// messages of one of them are locked.
func TestProbesOfAllGoRound(t *testing.T) {
	t.Parallel()
	const tenants = 7
	for _, others := range []int{0, 3} {
		t.Run(fmt.Sprintf("beside %d others", others), func(t *testing.T) {
			t.Parallel()
			db := setUp(t, longBacklog(tenants, 1, 5, 1)+`select outbox.set_shared('q1', true), outbox.hold(null, 'q1', '1 ms')`)
			conn := db.Connect(t)
			locker := begin(t, db.Connect(t))
			run(t, locker, `select from outbox.pending where namespace = 'ns3' for update`)
			var probed []string
			var longest float64
			for i := range 2 * tenants {
				for o := range others {
					put(t, conn, fmt.Sprint("other", o), "q2", fmt.Sprint(i, "/", o))
				}
				holdOver(t, conn)
				var probe []modelClaimed
				for range 2 { // the first claim may have come to the one that is locked
					rows := claimOn(t, conn, "n", longShards(), 50)
					for _, r := range rows {
						if r.Pass == 0 {
							probe = append(probe, r)
						} else {
							settle(t, conn, "complete", r.ID, r.Token)
						}
					}
					if len(probe) > 0 {
						break
					}
				}
				if len(probe) != 1 {
					t.Fatalf("INV-16: %d probes at a time", len(probe))
				}
				probed = append(probed, probe[0].Namespace)
				holdFail(t, conn, "unreachable", probe...)
				run(t, conn, `select outbox.observe(array[null], '{q1}')`)
				longest = one[float64](t, conn, `select extract(epoch from d.held_until - clock_timestamp())::float8 from outbox.destination as d where d.namespace is null`)
			}
			first := slices.Compact(slices.Sorted(slices.Values(probed[:tenants-1])))
			if len(first) != tenants-1 || slices.Contains(probed, "ns3") {
				t.Errorf("INV-18: the probes were of %q", probed)
			}
			// It has grown with the first one, the 6th and the 11th: 5 s, 10 s, 20 s at most, by a fifth.
			if longest > 1.2*20 {
				t.Errorf("after %d probes of %d namespaces it is held for %.0f s", len(probed), tenants-1, longest)
			}
		})
	}
}
