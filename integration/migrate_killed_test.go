package integration

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"github.com/fairclaim/fairclaim/sql/migrations"
)

// TestMigrateKilled: the process of a migrator dies by kill -9 while the server works on
// its migration. Ten others come at once: whatever the server made of it, one sets it
// right, and all agree.
func TestMigrateKilled(t *testing.T) {
	t.Parallel()
	latest := latestVersion(t)
	db := emptyDatabase(t)
	mustUp(t, db.DSN, migrations.Options{To: latest - 1})
	admin, ledger := db.Admin(t), db.Connect(t)
	run(t, ledger, "begin")
	run(t, ledger, "lock table outbox.migration in share mode")

	process := sweepCall{dsn: db.DSN, args: []string{"migrate", "up"}}.start(t)
	var stderr bytes.Buffer
	process.Stderr = &stderr
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	await(t, admin, `select exists (select from pg_locks as l where l.relation = 'outbox.migration'::regclass and not l.granted)`)
	if err := process.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = process.Wait() // killed
	if row := versionRow(t, admin); row != fmt.Sprint(latest, " dirty") {
		t.Errorf("the killed migrator left %q\n%s", row, &stderr)
	}

	const migrators = 10
	outcomes := make([]sweepOutcome, migrators)
	var all sync.WaitGroup
	for i := range migrators {
		all.Go(func() { outcomes[i] = sweepCall{dsn: db.DSN, args: []string{"migrate", "up"}}.do(t) })
	}
	run(t, ledger, "rollback") // the server goes on with what nobody waits for
	all.Wait()
	for i, o := range outcomes {
		if o.code != 0 {
			t.Errorf("migrator %d: exit %d\n%s%s", i, o.code, o.stdout, o.stderr)
		}
	}
	wantVersion(t, db.DSN, latest)
	wantSchema(t, admin, installedSchema(t))
}
