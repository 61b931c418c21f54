package integration

import (
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// A node's network to PostgreSQL fails for longer than the lease, in all the ways that
// networks do. Meanwhile another node works on; afterwards it goes on by itself. Nothing
// is lost (INV-1, INV-2), and it knocks at most so often.
func TestNetworkFails(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fail, heal func(*pgtest.Proxy)
		accepts    int // most connections that it opens meanwhile
	}{
		"both ways": {
			func(p *pgtest.Proxy) { p.Block(pgtest.BothWays) }, func(p *pgtest.Proxy) { p.Block(0) }, 20,
		},
		"to the server": {
			func(p *pgtest.Proxy) { p.Block(pgtest.ToServer) }, func(p *pgtest.Proxy) { p.Block(0) }, 20,
		},
		"from the server": {
			func(p *pgtest.Proxy) { p.Block(pgtest.FromServer) }, func(p *pgtest.Proxy) { p.Block(0) }, 20,
		},
		"slow":      {func(p *pgtest.Proxy) { p.Delay(40 * time.Millisecond) }, func(p *pgtest.Proxy) { p.Delay(0) }, 10},
		"refused":   {func(p *pgtest.Proxy) { p.Refuse(true); p.Reset() }, func(p *pgtest.Proxy) { p.Refuse(false) }, 40},
		"forgotten": {func(p *pgtest.Proxy) { p.Forget() }, func(*pgtest.Proxy) {}, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pg.New(t)
			b := newBadDay(t, db)
			proxy := pgtest.NewProxy(t, db.DSN)
			far := b.node("far", proxy.DSN(db.DSN))
			near := b.node("near", db.DSN)
			stop := b.feed()
			eventually(t, "both work", func() bool { return b.hooks.from("far") > 20 && b.hooks.from("near") > 20 })

			before, logged := proxy.Accepted(), len(far.log.String())
			test.fail(proxy)
			<-time.After(badTime(t))
			worked := b.hooks.from("near")
			eventually(t, "the other node works on", func() bool { return b.hooks.from("near") > worked+20 })
			test.heal(proxy)
			healed, alone := time.Now(), b.hooks.from("far")
			near.stop(t)
			eventually(t, "it works again, alone", func() bool { return b.hooks.from("far") > alone+20 })
			t.Logf("%d connections; it works again after %v; log of %d bytes", proxy.Accepted()-before, time.Since(healed), len(far.log.String())-logged)
			if n := proxy.Accepted() - before; n > test.accepts {
				t.Errorf("it opened %d connections, want %d at most", n, test.accepts)
			}
			stop()
			b.settled()
			far.stop(t)
			far.quiet(t, 60)
			b.account(60, 0)
		})
	}
}
