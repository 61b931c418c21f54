package integration

import (
	"errors"
	"os"
	"testing"

	"github.com/fairclaim/fairclaim/sql/migrations"
)

// TestMigrateForeignOwner: functions run with their owner's rights, so nobody installs into
// a schema that somebody else can change, be it empty.
func TestMigrateForeignOwner(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	mallory := db.Role(t)
	admin := db.Admin(t)
	run(t, admin, "drop schema outbox cascade")
	run(t, admin, "create schema outbox authorization "+mallory.Name)
	if _, err := migrations.Up(t.Context(), db.AdminDSN, migrations.Options{}); !errors.Is(err, migrations.ErrForeignOwner) {
		t.Error(err)
	}
	if n := one[int](t, admin, "select count(*) from pg_class where relnamespace = 'outbox'::regnamespace"); n != 0 {
		t.Errorf("%d relations were made", n)
	}
	// The file itself refuses too, for other migrators.
	text, err := os.ReadFile("../sql/migrations/000001_outbox.up.sql")
	if err != nil {
		t.Fatal(err)
	}
	_, err = admin.Exec(t.Context(), string(text))
	wantError(t, err, "OB005", "belongs to another role")
}
