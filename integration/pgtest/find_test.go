package pgtest_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// Whoever has no PostgreSQL reads one line that says what to type.
func TestNothingFound(t *testing.T) {
	noServer(t)
	_, err := pgtest.Start(t.Context(), pgtest.Options{Major: 99}) // no machine has that
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "apt-get install postgresql-99") {
		t.Errorf("got %v", err)
	}
	_, err = pgtest.Start(t.Context(), pgtest.Options{Major: 99, Kind: pgtest.KindBinary})
	if err == nil || !strings.Contains(err.Error(), "no server binaries of PostgreSQL 99 found") {
		t.Errorf("got %v", err)
	}
}

// noServer hides what this machine has: variables, programs on PATH, and the Docker engine.
func noServer(t *testing.T) {
	t.Helper()
	for _, name := range []string{"FAIRCLAIM_TEST_DSN", "FAIRCLAIM_PG", "FAIRCLAIM_PG_MAJOR", "PGBIN"} {
		t.Setenv(name, "")
	}
	t.Setenv("PATH", t.TempDir())
	t.Setenv("DOCKER_HOST", "unix://"+t.TempDir()+"/none.sock")
}

// What make says before it compiles and what the tests then use is decided by one script.
// A variable that asks for what is not there is an error that names the variable and what it
// takes, and is not passed over.
func TestWrongEnvironmentIsAnError(t *testing.T) {
	for _, test := range []struct {
		name, value string
		want        []string
		late        bool // known once the server is asked, so not to the script
	}{
		{name: "FAIRCLAIM_PG", value: "nonsense", want: []string{`FAIRCLAIM_PG="nonsense"`, "dsn, binary or docker"}},
		{name: "FAIRCLAIM_PG", value: "Binary", want: []string{`FAIRCLAIM_PG="Binary"`, "dsn, binary or docker"}},
		{name: "FAIRCLAIM_PG", value: "dsn", want: []string{"FAIRCLAIM_PG=dsn", "FAIRCLAIM_TEST_DSN is not set"}},
		{name: "FAIRCLAIM_PG", value: "docker", want: []string{"FAIRCLAIM_PG=docker", "no Docker engine answers"}},
		{name: "FAIRCLAIM_PG_MAJOR", value: "14", want: []string{`FAIRCLAIM_PG_MAJOR="14"`, "from 15 on"}},
		{name: "FAIRCLAIM_PG_MAJOR", value: "seventeen", want: []string{`FAIRCLAIM_PG_MAJOR="seventeen"`, "from 15 on"}},
		{name: "PGBIN", value: "/nowhere", want: []string{"PGBIN=/nowhere", "15 or newer"}},
		{name: "FAIRCLAIM_TEST_DSN", value: "postgres://u:secret@127.0.0.1:1/x", want: []string{"FAIRCLAIM_TEST_DSN"}, late: true},
	} {
		t.Run(test.name+"="+test.value, func(t *testing.T) {
			noServer(t)
			t.Setenv(test.name, test.value)
			server, err := pgtest.Start(t.Context(), pgtest.Options{})
			if err == nil {
				stop(t, server)
			}
			wantParts(t, err, test.want)
			if !test.late {
				out, err := exec.Command("./find.sh").CombinedOutput()
				if err == nil {
					t.Errorf("find.sh finds %s", out)
				}
				wantParts(t, errors.New(string(out)), test.want)
				if strings.Count(string(out), "\n") != 1 {
					t.Errorf("find.sh prints more than one line: %s", out)
				}
			}
		})
	}
}

// wantParts checks that an error says each part and no secret.
func wantParts(t *testing.T, err error, parts []string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error; want one that says %q", parts)
		return
	}
	text := strings.TrimSpace(err.Error())
	if strings.Contains(text, "secret") {
		t.Errorf("the error shows a secret: %s", text)
	}
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("the error does not say %q: %s", part, text)
		}
	}
}

// The kinds come in one order: a server that is named, the binaries, a Docker engine.
func TestOrderOfSearch(t *testing.T) {
	noServer(t)
	// A docker command that says that an engine answers, and binaries of PostgreSQL 16.
	docker, bin := t.TempDir(), t.TempDir()
	program(t, docker, "docker", "exit 0")
	program(t, bin, "initdb", "exit 0")
	program(t, bin, "postgres", "echo 'postgres (PostgreSQL) 16.4 (Debian 16.4-1)'")
	t.Setenv("FAIRCLAIM_PG_MAJOR", "16")
	find := func(want string) {
		t.Helper()
		out, err := exec.Command("./find.sh", "plain").CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != want {
			t.Errorf("find.sh finds %q (%v), want %q", got, err, want)
		}
	}
	t.Setenv("PATH", docker)
	if _, err := os.Stat("/usr/lib/postgresql/16"); err != nil {
		find("docker")
	}
	t.Setenv("PATH", docker+":"+bin)
	find("binary " + bin)
	t.Setenv("FAIRCLAIM_PG", "docker")
	find("docker")
	t.Setenv("FAIRCLAIM_PG", "")
	t.Setenv("FAIRCLAIM_TEST_DSN", "postgres://somewhere/db")
	find("dsn")
	t.Setenv("FAIRCLAIM_PG", "binary")
	find("binary " + bin)
}

// program writes a shell script that stands for a program.
func program(t *testing.T, dir, name, script string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
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
