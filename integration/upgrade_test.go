package integration

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golang-migrate/migrate/v4"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations/snapshot/functions"
)

// nextRelease writes the migrations to a folder and, behind them, some that do what a
// later release may: functions change as in nextFunctions, and tables that sessions have
// plans for get columns. A table a migration, so that it never holds one lock while it
// waits for another.
func nextRelease(t *testing.T) (dir string, newest uint) {
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
			"up":   up + fmt.Sprintf("\ninsert into outbox.migration (version) values (%d);\n", newest),
			"down": fmt.Sprintf("delete from outbox.migration where version = %d;\n", newest) + down + "\n",
		} {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%06d_next.%s.sql", newest, direction)), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	up, down := nextFunctions(t)
	write(up, down)
	write("alter table outbox.config add column shiny int not null default 7;", "alter table outbox.config drop column shiny;")
	write("alter table outbox.claimed add column note text;", "alter table outbox.claimed drop column note;")
	write("alter table outbox.pending add column note text;", "alter table outbox.pending drop column note;")
	return dir, newest
}

// nextFunctions is what the snapshot tool writes where a function is replaced, others are
// dropped and made anew, with another result and with one more argument, and views are
// made anew.
func nextFunctions(t *testing.T) (up, down string) {
	t.Helper()
	now, err := functions.Read(os.DirFS(functionsDir))
	if err != nil {
		t.Fatal(err)
	}
	edits := map[string][]string{
		"claim_fair.sql":   {"suspect int,", "suspect bigint, extra text,", "v_read.sizes[u.i], v_read.suspects[u.i],", "v_read.sizes[u.i], v_read.suspects[u.i]::bigint, null::text,"},
		"complete.sql":     {"tokens bigint[])", "tokens bigint[], note text default null)"},
		"enqueue.sql":      {"delay interval default null)", "delay interval default null, note text default null)", "jsonb, interval)", "jsonb, interval, text)"},
		"grants.sql":       {"jsonb, interval)", "jsonb, interval, text)"},
		"lock_claimed.sql": {"Locks the claimed", "Still locks the claimed"},
	}
	next := slices.Clone(now)
	for i, f := range next {
		text := f.Text
		for e := edits[f.Name]; len(e) > 0; e = e[2:] {
			if !strings.Contains(text, e[0]) {
				t.Fatalf("%s has no %q", f.Name, e[0])
			}
			text = strings.ReplaceAll(text, e[0], e[1])
		}
		if next[i], err = functions.Parse(f.Name, text); err != nil {
			t.Fatal(err)
		}
	}
	recreate := []string{"views.sql"}
	there, err := functions.Diff(now, next, recreate)
	if err != nil {
		t.Fatal(err)
	}
	back, err := functions.Diff(next, now, recreate)
	if err != nil {
		t.Fatal(err)
	}
	return there.SQL, back.SQL
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
// are prepared, somebody who enqueues as the owner, and roles that were granted just what
// they need.
type upgradeTraffic struct {
	process, inside lockedBuffer
	callers         map[string]*lockedBuffer // what failed, by who called
	sent            atomic.Int64
	stop            func() // ends it all when everything is delivered
}

const (
	processConnections = 4 // of sweep run
	insideConnections  = 2
)

func startUpgradeTraffic(t *testing.T, db *pgtest.DB, roles map[string]string) *upgradeTraffic {
	t.Helper()
	u := new(upgradeTraffic)
	process := sweepCall{dsn: db.DSN, args: []string{"run", "--node", "process", "--tick", "20ms", "--sink", "exec:true"}}.start(t)
	process.Stderr = &u.process
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- process.Wait() }()

	pool := func(dsn string, connections int32) *pgxpool.Pool {
		config, err := pgxpool.ParseConfig(dsn)
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
	inside, err := node.New(pool(db.DSN, insideConnections), node.Config{
		Node: "inside", Sink: node.SinkFunc(func(context.Context, driver.Delivery) error { return nil }),
		Tick: 20 * time.Millisecond, Batch: 20, Logger: slog.New(slog.NewTextHandler(&u.inside, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	node := startNode(t, inside)

	ctx, cancel := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	u.callers = map[string]*lockedBuffer{}
	loop := func(who, dsn string, call func(ctx context.Context, conn *pgxpool.Pool, n int) error) {
		conn, failed := pool(dsn, 1), new(lockedBuffer)
		u.callers[who] = failed
		callers.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for n := 0; ctx.Err() == nil; n++ {
				for {
					err := call(context.WithoutCancel(ctx), conn, n)
					if err == nil {
						break
					}
					fmt.Fprintln(failed, "failed a call", err)
				}
				<-tick.C
			}
		})
	}
	for who, dsn := range roles {
		loop(who, dsn, func(ctx context.Context, conn *pgxpool.Pool, n int) error {
			if who == "operator" {
				_, err := conn.Exec(ctx, "select count(*) from outbox.nodes")
				return err
			}
			_, err := driver.Enqueue(ctx, conn, driver.Message{
				Namespace: fmt.Sprint("ns", n%3), TaskQueue: "q", DispatchKey: fmt.Sprint(who, n), Payload: []byte("x"),
			})
			if err == nil {
				u.sent.Add(1)
			}
			return err
		})
	}
	t.Cleanup(func() { cancel(); callers.Wait() })
	u.stop = func() {
		cancel()
		callers.Wait()
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

// upgradeRoles are those who call while the schema changes, with their connection strings.
func upgradeRoles(t *testing.T, db *pgtest.DB) map[string]string {
	t.Helper()
	producer, byHand, operator := db.Role(t), db.Role(t), db.Role(t)
	run(t, db.Pool, "select outbox.grant_producer($1)", producer.Name)
	run(t, db.Pool, "select outbox.grant_operator($1)", operator.Name)
	run(t, db.Pool, "grant usage on schema outbox to "+byHand.Name)
	run(t, db.Pool, "grant execute on function outbox.enqueue(text, text, text, bytea, text, jsonb, interval), outbox.enqueue(text, text, text, text, text, jsonb, interval) to "+byHand.Name)
	return map[string]string{"owner": db.DSN, "producer": producer.DSN, "granted by hand": byHand.DSN, "operator": operator.DSN}
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
// producers costs each connection at most one call, and no message (INV-2). Functions and
// views that are made anew keep the rights on them.
func TestUpgradeUnderTraffic(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	dir, newest := nextRelease(t)
	m, err := migrate.New("file://"+dir, plainURL(t, db.DSN))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = m.Close() })
	u := startUpgradeTraffic(t, db, upgradeRoles(t, db))
	before := describeSchema(t, conn, true) // with the roles' rights
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
	for who, failed := range u.callers {
		wantFewFailures(t, who, failed.String(), 1, changes)
	}
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
	dir, _ := nextRelease(t)
	m, err := migrate.New("file://"+dir, plainURL(t, db.DSN))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = m.Close() })
	u := startUpgradeTraffic(t, db, map[string]string{"owner": db.DSN}) // a down drops the rights with the functions
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
