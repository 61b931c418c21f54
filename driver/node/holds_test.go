package node

import (
	"strings"
	"testing"

	"github.com/fairclaim/fairclaim/driver"
)

// Who got through after a failure. Each word of a round is a delivery, in the order in which they ended: a namespace of
// one letter, with the task queue q (or r), and what it came to: ok, settled by the sink, fails, or a probe that fails.
func TestMarkReached(t *testing.T) {
	for _, c := range []struct{ round, want string }{
		{"a:fails", "-"},
		{"a:ok a:fails", "-"},
		{"a:fails a:ok", "namespace"},
		{"a:fails a:settled", "namespace"},
		{"a:fails b:ok", "others"},
		{"a:fails a:ok b:ok a:fails", "namespace -"},
		{"a:fails b:ok a:fails b:fails a:ok", "namespace namespace others"},
		{"a:fails ar:ok", "-"},
		{"a:probe a:ok b:ok", "-"},
		{"a:fails a:retry a:final a:released", "-"},
	} {
		verdicts := map[string]verdict{
			"ok": toComplete, "settled": settledBySink, "fails": toFailDestination, "probe": toFailDestination,
			"retry": toRetry, "final": toFail, "released": toRelease,
		}
		var results, failures []*item
		for i, word := range strings.Fields(c.round) {
			who, what, _ := strings.Cut(word, ":")
			it := &item{Delivery: driver.Delivery{Namespace: who[:1], TaskQueue: "q" + who[1:], Probe: what == "probe"}}
			it.verdict, it.ended = verdicts[what], int64(i+1)
			results = append(results, it)
			if it.verdict == toFailDestination {
				failures = append(failures, it)
			}
		}
		// What could not be settled comes behind what was delivered later.
		for range results {
			results = append(results[1:], results[0])
			for _, it := range failures {
				it.reached = driver.ReachedByNone
			}
			markReached(results)
			var got []string
			for _, it := range failures {
				if got = append(got, string(it.reached)); it.reached == driver.ReachedByNone {
					got[len(got)-1] = "-"
				}
			}
			if got := strings.Join(got, " "); got != c.want {
				t.Errorf("%s: %s, want %s", c.round, got, c.want)
			}
		}
	}
}
