package integration

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

// INV-16: an endpoint that answers each fifth message of a tenant with 503, and the others well, is not held, for one
// tenant or for all: in a row, no more than a few fail. Its settles come in batches, from two nodes, beside claims.
func TestFlakyEndpointIsNotHeld(t *testing.T) {
	t.Parallel()
	const tenants, each = 20, 150
	db := setUp(t, `select outbox.configure('{"retry_base": "1 h"}')`)
	calls := map[string]*atomic.Int64{}
	for i := range tenants {
		name := "t" + string(rune('a'+i))
		fill(t, db.Pool, name, "q", each, 1)
		calls["/"+name] = &atomic.Int64{}
		calls["/"+name].Add(int64(i)) // not all at once
	}
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if calls[r.URL.Path].Add(1)%5 == 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(func() { endpoint.CloseClientConnections(); endpoint.Close() })
	for _, name := range []string{"n1", "n2"} {
		startSweep(t, db.DSN, name, "--sink", endpoint.URL+"/{namespace}", "--slots", "16")
	}
	await(t, db.Pool, `select exists (select from outbox.hold_event)
		or not exists (select from outbox.pending where attempt = 0) and not exists (select from outbox.claimed)`)
	if held := list[string](t, db.Pool, `select coalesce(namespace, 'all') from outbox.hold_event where event = 'held'`); len(held) > 0 {
		t.Errorf("the destinations of %q are held", held)
	}
	if n := one[int](t, db.Pool, `select count(*) from outbox.settled where outcome = 'done'`); n < tenants*each/2 {
		t.Errorf("%d of %d were delivered", n, tenants*each)
	}
}
