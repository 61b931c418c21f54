package integration

import (
	"fmt"
	"net"
	"testing"
)

// A node serves the pages beside its work, with what it is asked for by --ui-actions; it ends in good order.
func TestUIOfANode(t *testing.T) {
	t.Parallel()
	db := setUp(t, `select outbox.pause('paused', note => 'asked to')`)
	put(t, db.Pool, "paused", "hook", "paused/1")
	put(t, db.Pool, "free", "hook", "free/1")
	ui := servePages(t, db.DSN, "run", "--node", "n1", "--sink", "exec:true", "--tick", "50ms", "--ui", "127.0.0.1:0", "--ui-actions")
	await(t, db.Pool, `select count(*) = 1 from outbox.messages where dispatch_key = 'free/1' and status = 'done'`)
	wantTexts(t, "the tenant", ui.page(t, "/tenant?name=paused"), "Tenant paused", "Paused by", "asked to")
	wantTexts(t, "Nodes", ui.page(t, "/nodes"), "n1", "live", "0-15")
	wantTexts(t, "resumed", ui.act(t, "/resume", "namespace", "paused"), "Resumed tenant paused.")
	await(t, db.Pool, `select count(*) = 1 from outbox.messages where dispatch_key = 'paused/1' and status = 'done'`)
	ui.stop(t)
	if n := one[int](t, db.Pool, `select count(*) from outbox.node`); n != 0 {
		t.Error("the node has not left")
	}
}

// A node whose pages cannot be served does not begin, and says which flag is wrong.
func TestUIOfANodeRefused(t *testing.T) {
	t.Parallel()
	db := setUp(t, "")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	node := []string{"run", "--sink", "stdout", "--ui"}
	sweepFails(t, db.DSN, 1, append(node, taken.Addr().String()), fmt.Sprintf("--ui %s", taken.Addr()), "address already in use")
	sweepFails(t, db.DSN, 2, append(node, "nowhere"), "--ui", "HOST:PORT")
	sweepFails(t, db.DSN, 2, append(node, "127.0.0.1:0", "--ui-users", "/no/such/file"), "--ui-users", "/no/such/file")
	if n := one[int](t, db.Pool, `select count(*) from outbox.node`); n != 0 {
		t.Errorf("%d nodes have begun", n)
	}
}
