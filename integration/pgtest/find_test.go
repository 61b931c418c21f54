package pgtest_test

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// Whoever has no PostgreSQL reads one line that says what to type.
func TestNothingFound(t *testing.T) {
	for _, name := range []string{"FAIRCLAIM_TEST_DSN", "FAIRCLAIM_PG", "FAIRCLAIM_PG_MAJOR", "PGBIN"} {
		t.Setenv(name, "")
	}
	t.Setenv("PATH", t.TempDir())
	t.Setenv("DOCKER_HOST", "unix://"+t.TempDir()+"/none.sock")

	_, err := pgtest.Start(t.Context(), pgtest.Options{Major: 99}) // no machine has that
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "apt-get install postgresql-99") {
		t.Errorf("got %v", err)
	}
}

func TestWrongEnvironmentIsAnError(t *testing.T) {
	for _, test := range []struct{ name, value, want string }{
		{"FAIRCLAIM_PG", "podman", `"podman"`},
		{"FAIRCLAIM_PG_MAJOR", "14", `"14"`},
		{"PGBIN", "/nowhere", "PGBIN=/nowhere"},
		{"FAIRCLAIM_TEST_DSN", "postgres://u:secret@127.0.0.1:1/x", "FAIRCLAIM_TEST_DSN"},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, name := range []string{"FAIRCLAIM_TEST_DSN", "FAIRCLAIM_PG", "FAIRCLAIM_PG_MAJOR", "PGBIN"} {
				t.Setenv(name, "")
			}
			t.Setenv(test.name, test.value)
			server, err := pgtest.Start(t.Context(), pgtest.Options{})
			if err == nil {
				stop(t, server)
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v; want one that names %s and no secret", err, test.want)
			}
		})
	}
}

// An existing server need not trust us with more than databases and roles.
func TestExistingServer(t *testing.T) {
	admin := connect(t, pg.Server().AdminDSN())
	exec1(t, admin, "create role guest login createdb createrole password 'guest\\'")
	t.Cleanup(func() {
		if _, err := admin.Exec(context.Background(), "drop owned by guest; drop role guest"); err != nil {
			t.Error(err)
		}
	})
	config := admin.Config()
	for name, dsn := range map[string]string{
		"url": (&url.URL{
			Scheme: "postgres", User: url.UserPassword("guest", `guest\`), Path: "/postgres",
			RawQuery: url.Values{"host": {config.Host}, "port": {fmt.Sprint(config.Port)}}.Encode(),
		}).String(),
		"escaped host": fmt.Sprintf("postgres://guest:guest%%5C@%s:%d/postgres?application_name=x",
			strings.NewReplacer("1", "%31", "/", "%2F").Replace(config.Host), config.Port),
		"words": fmt.Sprintf(`host=%s port=%d user=guest password='guest\\' dbname=postgres`, config.Host, config.Port),
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("FAIRCLAIM_TEST_DSN", dsn)
			before := inventory(t, admin)
			cluster, err := pgtest.Open(t.Context(), pgtest.Options{Kind: pgtest.KindDSN}, setup)
			if err != nil {
				t.Fatal(err)
			}
			t.Run("clone", func(t *testing.T) {
				db := cluster.New(t)
				checkClone(t, db)
				exec1(t, db.Connect(t, pgtest.As(db.Role(t))), "select 1")
			})
			if err := cluster.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if after := inventory(t, admin); !slices.Equal(before, after) {
				t.Errorf("the server had %q and has %q", before, after)
			}
		})
	}
}

// inventory lists the databases and roles of the server.
func inventory(t *testing.T, conn *pgx.Conn) []string {
	t.Helper()
	rows, err := conn.Query(t.Context(), `
		select 'database ' || d.datname from pg_database d
		union all select 'role ' || r.rolname from pg_roles r
		order by 1`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}
