package integration

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// nextRelease writes the migrations to a folder and, behind them, some that do what a
// later release may: a function is replaced, others are dropped and made anew, with
// another result and with one more argument, and tables that sessions have plans for get
// columns. A table a migration, so that it never holds one lock while it waits for another.
func nextRelease(t *testing.T, conn *pgx.Conn) (dir string, newest uint) {
	t.Helper()
	dir = t.TempDir()
	files, err := filepath.Glob(filepath.Join("..", "sql", "migrations", "*.sql"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no migrations: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(file)), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	newest = latestVersion(t)
	write := func(up, down string) {
		newest++
		for direction, text := range map[string]string{
			"up":   up + fmt.Sprintf(";\ninsert into outbox.migration (version) values (%d);\n", newest),
			"down": fmt.Sprintf("delete from outbox.migration where version = %d;\n", newest) + down + ";\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d_next.%s.sql", newest, direction)), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	var up, down []string
	for _, f := range []struct {
		signature, changed string
		edits              []string
	}{
		{
			"outbox.claim_fair(text, int[], int, bigint, boolean)", "outbox.claim_fair(text, int[], int, bigint, boolean)",
			[]string{"suspect integer)", "suspect bigint, extra text)", "octet_length(m.payload), u.suspect\n", "octet_length(m.payload), u.suspect::bigint, null::text\n"},
		},
		{
			"outbox.complete(bigint[], bigint[])", "outbox.complete(bigint[], bigint[], text)",
			[]string{"tokens bigint[])", "tokens bigint[], note text default null)"},
		},
		{"outbox.lock_claimed(bigint[], bigint[])", "", []string{"Locks the claimed", "Still locks the claimed"}},
	} {
		old := one[string](t, conn, `select pg_get_functiondef($1::text::regprocedure)`, f.signature)
		rest := func(signature string) string {
			return fmt.Sprintf("comment on function %s is %s;\nrevoke all on function %[1]s from public", signature,
				one[string](t, conn, `select quote_literal(obj_description($1::text::regprocedure, 'pg_proc'))`, f.signature))
		}
		changed := strings.NewReplacer(f.edits...).Replace(old)
		for i := 0; i < len(f.edits); i += 2 {
			if !strings.Contains(old, f.edits[i]) {
				t.Fatalf("%s has no %q", f.signature, f.edits[i])
			}
		}
		if f.changed == "" {
			up, down = append(up, changed), append(down, old)
			continue
		}
		up = append(up, "drop function "+f.signature, changed, rest(f.changed))
		down = append(down, "drop function "+f.changed, old, rest(f.signature))
	}
	write(strings.Join(up, ";\n"), strings.Join(down, ";\n"))
	write("alter table outbox.config add column shiny int not null default 7", "alter table outbox.config drop column shiny")
	write("alter table outbox.claimed add column note text", "alter table outbox.claimed drop column note")
	write("alter table outbox.pending add column note text", "alter table outbox.pending drop column note")
	return dir, newest
}

var sqlstate = regexp.MustCompile(`SQLSTATE ([0-9A-Z]{5})`)

// wantFewFailures fails where more calls failed than connections were there, for each of
// the changes, or any failed otherwise than by a plan or a function that has changed.
func wantFewFailures(t *testing.T, who, log string, connections, changes int) {
	t.Helper()
	failures := 0
	for line := range strings.Lines(log) {
		if !strings.Contains(line, "failed a call") {
			continue
		}
		failures++
		state := sqlstate.FindStringSubmatch(line)
		switch {
		case state == nil:
			t.Errorf("%s: %s", who, line)
		case state[1] == "0A000", state[1] == "42883", state[1] == "42804": // result type, no such function, row type
		case state[1] == "XX000" && strings.Contains(line, "cache lookup failed"): // dropped between parse and call
		default:
			t.Errorf("%s: %s", who, line)
		}
	}
	t.Logf("%s: %d failed calls", who, failures)
	if failures > connections*changes {
		t.Errorf("%s: %d calls failed on %d connections in %d changes:\n%s", who, failures, connections, changes, log)
	}
}

// upgradeTraffic is what runs while the schema changes: the sweep of this tree as a
// process, a node in this one with the pool that pgx makes by default, whose statements
// are prepared, and somebody who enqueues.
type upgradeTraffic struct {
	process, inside lockedBuffer
	producer        lockedBuffer
	sent            atomic.Int64
	stop            func() // ends it all when everything is delivered
}

const (
	processConnections = 4 // of sweep run
	insideConnections  = 2
)

func startUpgradeTraffic(t *testing.T, db *pgtest.DB) *upgradeTraffic {
	t.Helper()
	u := new(upgradeTraffic)
	process := sweepCall{dsn: db.DSN, args: []string{"run", "--node", "process", "--tick", "20ms", "--sink", "exec:true"}}.start(t)
	process.Stderr = &u.process
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- process.Wait() }()

	pool := func(connections int32) *pgxpool.Pool {
		config, err := pgxpool.ParseConfig(db.DSN)
		if err != nil {
			t.Fatal(err)
		}
		config.MaxConns = connections
		p, err := pgxpool.NewWithConfig(t.Context(), config)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(p.Close)
		return p
	}
	inside, err := driver.NewSweeper(pool(insideConnections), driver.Config{
		Node: "inside", Sink: driver.SinkFunc(func(context.Context, driver.Message) error { return nil }),
		Tick: 20 * time.Millisecond, Batch: 20, Logger: slog.New(slog.NewTextHandler(&u.inside, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	node := startNode(t, inside)

	ctx, cancel := context.WithCancel(t.Context())
	producerDone := make(chan struct{})
	conn := pool(1)
	go func() {
		defer close(producerDone)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			m := driver.NewMessage{Namespace: fmt.Sprint("ns", n%3), TaskQueue: "q", DispatchKey: fmt.Sprint("key", n), Payload: []byte("x")}
			for {
				if _, err := driver.Enqueue(context.WithoutCancel(ctx), conn, m); err == nil {
					break
				} else {
					fmt.Fprintln(&u.producer, "failed a call", err)
				}
			}
			u.sent.Add(1)
			<-tick.C
		}
	}()
	t.Cleanup(func() { cancel(); <-producerDone })
	u.stop = func() {
		cancel()
		<-producerDone
		await(t, db.Pool, "select count(*) = $1 from outbox.settled as s where s.outcome = 'done'", u.sent.Load())
		if err := process.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := <-exited; err != nil {
			t.Errorf("sweep run: %v\n%s", err, &u.process)
		}
		node.drained(t)
	}
	return u
}

// served waits until both nodes have delivered some more.
func (u *upgradeTraffic) served(t *testing.T, db *pgtest.DB) {
	t.Helper()
	const by = `select count(*) from outbox.settled as s where s.settled_by = $1`
	for _, node := range []string{"process", "inside"} {
		before := one[int](t, db.Pool, by, node)
		await(t, db.Pool, `select ((`+by+`) > $2)`, node, before+20)
	}
}

// TestUpgradeUnderTraffic: a schema that changes and changes back under running nodes and
// producers costs each connection at most one call, and no message (INV-2).
func TestUpgradeUnderTraffic(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	before := describeSchema(t, conn, true)
	dir, newest := nextRelease(t, conn)
	m, err := migrate.New("file://"+dir, plainURL(t, db.DSN))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = m.Close() })
	u := startUpgradeTraffic(t, db)
	u.served(t, db)

	changes := 0
	for version, target := latestVersion(t), newest; ; {
		for version != target {
			if version < target {
				version++
			} else {
				version--
			}
			if err := m.Migrate(version); err != nil {
				t.Fatalf("to version %d: %v", version, err)
			}
			changes++
			u.served(t, db)
		}
		if target == latestVersion(t) {
			break
		}
		target = latestVersion(t)
	}
	u.stop()

	wantFewFailures(t, "sweep run", u.process.String(), processConnections, changes)
	wantFewFailures(t, "a node on pgx's default pool", u.inside.String(), insideConnections, changes)
	wantFewFailures(t, "a producer", u.producer.String(), 1, changes)
	if again := one[int](t, conn, `select count(*) from outbox.settled as s where s.attempts <> 1`); again != 0 {
		t.Errorf("INV-2: %d messages were not delivered by one attempt", again)
	}
	wantOutcomes(t, conn, map[string]int{"done": int(u.sent.Load())})
	wantSchema(t, conn, before)
}

// TestFunctionsAwayAndBack: nodes live through a schema without functions, as between a
// migrate down and the next up, and go on by themselves.
func TestFunctionsAwayAndBack(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	dir, _ := nextRelease(t, db.Connect(t))
	m, err := migrate.New("file://"+dir, plainURL(t, db.DSN))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = m.Close() })
	u := startUpgradeTraffic(t, db)
	u.served(t, db)
	if err := m.Migrate(1); err != nil {
		t.Fatal(err)
	}
	for name, log := range map[string]*lockedBuffer{"sweep run": &u.process, "inside": &u.inside} {
		eventually(t, name+" misses the functions", func() bool { return strings.Contains(log.String(), "42883") })
	}
	if err := m.Migrate(latestVersion(t)); err != nil {
		t.Fatal(err)
	}
	u.served(t, db)
	u.stop()
	wantOutcomes(t, db.Pool, map[string]int{"done": int(u.sent.Load())})
}
