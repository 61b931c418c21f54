package integration

import (
	"bytes"
	"errors"
	"io/fs"
	"net/url"
	"os"
	osexec "os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/golang-migrate/migrate/v4"
	_ "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	_ "github.com/golang-migrate/migrate/v4/source/file"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
	"github.com/fairclaim/fairclaim/sql/migrations/snapshot/functions"
)

// plainURL is what golang-migrate's command line takes for this schema.
func plainURL(t *testing.T, dsn string, extra ...string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Skip("the test server's connection string is no URL")
	}
	u.Scheme = "pgx5"
	query := u.Query()
	query.Set("x-migrations-table", `"outbox"."schema_migrations"`)
	query.Set("x-migrations-table-quoted", "1")
	for i := 0; i < len(extra); i += 2 {
		query.Set(extra[i], extra[i+1])
	}
	u.RawQuery = query.Encode()
	return u.String()
}

// TestMigrateSQL proves that the printed SQL, run by another program, gives the
// same schema, and that Up takes over from there.
func TestMigrateSQL(t *testing.T) {
	t.Parallel()
	latest := latestVersion(t)
	var up, down bytes.Buffer
	if err := errors.Join(migrations.SQL(&up, 0, latest), migrations.SQL(&down, latest, 0)); err != nil {
		t.Fatal(err)
	}
	if err := migrations.SQL(&up, 0, latest+1); err == nil {
		t.Error("SQL to a version that is not there went well")
	}
	want := installedSchema(t)
	for name, apply := range map[string]func(t *testing.T, db *pgtest.DB, script string){
		"psql": func(t *testing.T, db *pgtest.DB, script string) {
			psql, err := osexec.LookPath("psql")
			if err != nil {
				t.Skip("psql is not installed")
			}
			cmd := osexec.CommandContext(t.Context(), psql, "-X", "-q", "-v", "ON_ERROR_STOP=1", "-d", db.DSN)
			cmd.Env = append(os.Environ(), "PGOPTIONS=-c client_min_messages=warning") // the schema exists the second time
			cmd.Stdin = strings.NewReader(script)
			if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
				t.Fatalf("psql: %v\n%s", err, out)
			}
		},
		"hostile session": func(t *testing.T, db *pgtest.DB, script string) {
			execScript(t, db.Connect(t, pgtest.Param("standard_conforming_strings", "off"), pgtest.Param("search_path", "")), script)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := emptyDatabase(t)
			conn := db.Connect(t)
			apply(t, db, up.String())
			if result := mustUp(t, db.DSN, migrations.Options{}); len(result.Ran) != 0 || !result.Repaired || result.To != latest {
				t.Errorf("Up after another migrator = %+v", result)
			}
			wantVersion(t, db.DSN, latest)
			wantSchema(t, conn, want)

			run(t, conn, "drop table outbox.schema_migrations")
			apply(t, db, down.String())
			wantSchema(t, conn, "schema outbox\n")
			apply(t, db, up.String())
			mustUp(t, db.DSN, migrations.Options{})
			wantSchema(t, conn, want)
		})
	}
}

// TestMigratePlain proves that golang-migrate itself, called as its command line
// calls it, works on the same files after the one line that it needs, and that it
// and Up take turns.
func TestMigratePlain(t *testing.T) {
	t.Parallel()
	db := emptyDatabase(t)
	conn := db.Connect(t)
	run(t, conn, "create schema outbox")
	plain, err := migrate.New("file://"+migrationsDir, plainURL(t, db.DSN))
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := plain.Up(); err != nil {
		t.Fatal(err)
	}
	want := installedSchema(t)
	wantSchema(t, conn, want)
	if result := mustUp(t, db.DSN, migrations.Options{}); len(result.Ran) != 0 || result.Repaired {
		t.Errorf("Up after golang-migrate = %+v", result)
	}
	if err := plain.Steps(-1); err != nil {
		t.Fatal(err)
	}
	if result := mustUp(t, db.DSN, migrations.Options{}); len(result.Ran) != 1 || result.Repaired {
		t.Errorf("Up after one step down = %+v", result)
	}
	if err := plain.Down(); err != nil {
		t.Fatal(err)
	}
	wantVersion(t, db.DSN, 0)
	mustUp(t, db.DSN, migrations.Options{})
	if err := plain.Up(); !errors.Is(err, migrate.ErrNoChange) {
		t.Errorf("golang-migrate after Up: %v", err)
	}
	wantSchema(t, conn, want)
}

// TestMigrationFiles: pairs without a gap, each with its row of the ledger at the
// right end, none with a transaction of its own.
func TestMigrationFiles(t *testing.T) {
	t.Parallel()
	all, err := migrations.List()
	if err != nil {
		t.Fatal(err)
	}
	files := os.DirFS(migrationsDir)
	for i, m := range all {
		if int(m.Version) != i+1 {
			t.Errorf("%s should have version %d", m, i+1)
		}
		up, upErr := fs.ReadFile(files, m.String()+".up.sql")
		down, downErr := fs.ReadFile(files, m.String()+".down.sql")
		if err := errors.Join(upErr, downErr); err != nil {
			t.Error(err)
		}
		checkLedgerLines(t, m, string(up), string(down))
	}
}

func checkLedgerLines(t *testing.T, m migrations.Migration, up, down string) {
	t.Helper()
	last := "insert into outbox.migration (version) values (" + strconv.FormatUint(uint64(m.Version), 10) + ");"
	if !strings.HasSuffix(strings.TrimSpace(up), "\n"+last) {
		t.Errorf("%s: the last line of the up file must be: %s", m, last)
	}
	first := "delete from outbox.migration where version = " + strconv.FormatUint(uint64(m.Version), 10) + ";"
	if m.Version > 2 {
		for name, text := range map[string]*string{"up": &up, "down": &down} {
			var pinned bool
			if *text, pinned = strings.CutPrefix(*text, functions.Pin); !pinned {
				t.Errorf("%s: the first line of the %s file must be: %s", m, name, functions.Pin)
			}
		}
	}
	for line := range strings.Lines(down) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--") {
			if line != first {
				t.Errorf("%s: the first statement of the down file must be: %s", m, first)
			}
			break
		}
	}
}
