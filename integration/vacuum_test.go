package integration

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

// vacuumVersion is the migration that sets when autovacuum comes by.
const vacuumVersion = 17

// vacuumSettings are the storage parameters of a table, but for its fillfactor.
func vacuumSettings(t *testing.T, q querier, table string) string {
	t.Helper()
	return one[string](t, q, `select coalesce(string_agg(o.option_name || '=' || o.option_value, ' ' order by o.option_name), '')
		from pg_class as c cross join lateral pg_options_to_table(c.reloptions) as o
		where c.oid = ('outbox.' || $1)::regclass and o.option_name <> 'fillfactor'`, table)
}

// TestVacuumSettings: a table whose rows come and go is vacuumed by rows; what a user has set, before or after the
// migration, stays on the way up and on the way down.
func TestVacuumSettings(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	conn := db.Connect(t)
	mustUp(t, db.DSN, migrations.Options{To: vacuumVersion - 1})
	run(t, conn, `alter table outbox.pending set (autovacuum_vacuum_threshold = 77, autovacuum_vacuum_cost_delay = 1)`)
	mustUp(t, db.DSN, migrations.Options{To: vacuumVersion})
	want := map[string]string{
		"pending": "autovacuum_analyze_threshold=50000 autovacuum_vacuum_cost_delay=1 autovacuum_vacuum_insert_threshold=100000 autovacuum_vacuum_scale_factor=0.02 autovacuum_vacuum_threshold=77",
		"claimed": "autovacuum_analyze_threshold=50000 autovacuum_vacuum_insert_threshold=100000 autovacuum_vacuum_scale_factor=0.02 autovacuum_vacuum_threshold=10000",
		"message": "autovacuum_analyze_threshold=50000 autovacuum_vacuum_insert_threshold=100000 autovacuum_vacuum_scale_factor=0.05 autovacuum_vacuum_threshold=10000",
		"walk":    "autovacuum_analyze_threshold=50000 autovacuum_vacuum_threshold=1000",
		"config":  "",
	}
	for table, settings := range want {
		if got := vacuumSettings(t, conn, table); got != settings {
			t.Errorf("%s: %s, want %s", table, got, settings)
		}
	}
	run(t, conn, `alter table outbox.message set (autovacuum_vacuum_scale_factor = 0.5)`)
	if _, err := migrations.Down(t.Context(), db.DSN, 1, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	for table, settings := range map[string]string{
		"pending": "autovacuum_vacuum_cost_delay=1 autovacuum_vacuum_threshold=77", "claimed": "", "message": "autovacuum_vacuum_scale_factor=0.5", "walk": "",
	} {
		if got := vacuumSettings(t, conn, table); got != settings {
			t.Errorf("on the way down, %s: %s, want %s", table, got, settings)
		}
	}
}

// TestVacuumSettingsBesideTraffic: the migration waits for no open transaction that writes, up or down.
func TestVacuumSettingsBesideTraffic(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	mustUp(t, db.DSN, migrations.Options{To: vacuumVersion - 1})
	conn := db.Connect(t)
	put(t, conn, "n", "q", "settled")
	row := claimOne(t, conn, "n1")
	tx := begin(t, conn)
	put(t, tx, "n", "q", "claimed")
	claimOne(t, tx, "n1")
	if !settle(t, tx, "fail", row.ID, row.Token) {
		t.Fatal("the settle was lost")
	}
	mustUp(t, db.DSN, migrations.Options{To: vacuumVersion})
	if _, err := migrations.Down(t.Context(), db.DSN, 1, migrations.Options{}); err != nil {
		t.Fatal(err)
	}
	commit(t, tx)
	wantSound(t, conn)
}

// vacuumAdvice is what check says of autovacuum.
func vacuumAdvice(t *testing.T, q querier) []string {
	t.Helper()
	found, err := audit(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, v := range found {
		told = append(told, v.String()+" "+v.Hint)
	}
	slices.Sort(told)
	return told
}

func wantAdvice(t *testing.T, told []string, want ...string) {
	t.Helper()
	if len(told) != len(want) {
		t.Fatalf("check says\n%s\nwant %d rows", strings.Join(told, "\n"), len(want))
	}
	for i, beginning := range want {
		if !strings.HasPrefix(told[i], beginning) {
			t.Errorf("check says %q, want %q", told[i], beginning)
		}
	}
}

// TestVacuumAdvice: check says where autovacuum is off for a table, its TOAST table too, or for the server.
func TestVacuumAdvice(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	run(t, conn, `alter table outbox.claimed set (autovacuum_enabled = off); alter table outbox.settled set (autovacuum_enabled = on);
		alter table outbox.message set (toast.autovacuum_enabled = 0)`, pgx.QueryExecModeSimpleProtocol)
	tables := []string{
		"advice table outbox.claimed: has autovacuum_enabled = off Each message leaves dead rows. alter table outbox.claimed reset (autovacuum_enabled), or",
		"advice table outbox.message: has toast.autovacuum_enabled = off Each message leaves dead rows. alter table outbox.message reset (toast.autovacuum_enabled), or",
	}
	wantAdvice(t, vacuumAdvice(t, conn), tables...)
	run(t, conn, `alter table outbox.claimed reset (autovacuum_enabled); alter table outbox.message reset (toast.autovacuum_enabled)`, pgx.QueryExecModeSimpleProtocol)
	wantSound(t, conn)
	admin := db.Admin(t)
	run(t, admin, `set track_counts = off`)
	wantAdvice(t, vacuumAdvice(t, admin), "advice the server: has track_counts = off, so autovacuum does not come by")
}

// TestVacuumAdviceServer: the same where the server has autovacuum off.
func TestVacuumAdviceServer(t *testing.T) {
	t.Parallel()
	c, err := pgtest.Open(t.Context(), pgtest.Options{Settings: map[string]string{"autovacuum": "off"}, Log: t.Output()}, func(ctx context.Context, dsn string) error {
		_, err := migrations.Up(ctx, dsn, migrations.Options{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	wantAdvice(t, vacuumAdvice(t, c.New(t).Connect(t)), "advice the server: has autovacuum = off, so autovacuum does not come by")
}
