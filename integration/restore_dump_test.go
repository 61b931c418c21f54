package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

// clientOf finds PostgreSQL's client programs of a major version: this machine's, or those
// of a container image. It returns the beginning of their command lines, nil for none.
func clientOf(major int) []string {
	dir := filepath.Join("/usr/lib/postgresql", strconv.Itoa(major), "bin")
	if _, err := os.Stat(filepath.Join(dir, "pg_dump")); err == nil {
		return []string{"env", "PATH=" + dir}
	}
	if path, err := exec.LookPath("pg_dump"); err == nil {
		if out, err := exec.Command(path, "--version").Output(); err == nil && bytes.Contains(out, fmt.Appendf(nil, ") %d.", major)) {
			return []string{"env"}
		}
	}
	if image := imageOf(major); image != "" {
		return []string{"docker", "run", "--rm", "-i", "--network", "host", image}
	}
	return nil
}

// imageOf is the local container image of a major version, "" for none.
func imageOf(major int) string {
	for _, image := range []string{fmt.Sprint("fairclaim-postgres:", major), fmt.Sprint("postgres:", major)} {
		if exec.Command("docker", "image", "inspect", image).Run() == nil {
			return image
		}
	}
	return ""
}

// client runs one of the programs, which must succeed, and returns what it printed.
func client(t *testing.T, command []string, stdin []byte, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	defer cancel()
	all := append(append([]string{}, command...), args...)
	cmd := exec.CommandContext(ctx, all[0], all[1:]...)
	cmd.Stdin = bytes.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", args[0], err, &stderr)
	}
	return stdout.Bytes()
}

// restored is how a dump gets into an empty database.
var restored = map[string]func(t *testing.T, command []string, from, to string){
	"plain": func(t *testing.T, command []string, from, to string) {
		dump := client(t, command, nil, "pg_dump", "--no-owner", "--dbname", from)
		client(t, command, dump, "psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "--dbname", to)
	},
	"custom": func(t *testing.T, command []string, from, to string) {
		dump := client(t, command, nil, "pg_dump", "--no-owner", "--format=custom", "--dbname", from)
		client(t, command, dump, "pg_restore", "--no-owner", "--exit-on-error", "--dbname", to)
	},
}

// dumpContent is everything that the tables hold.
const dumpContent = `
	select string_agg(c.relname || ': ' || query_to_xml(format('select t.* from outbox.%I as t order by t::text', c.relname), false, false, '')::text,
	                  e'\n' order by c.relname)
	from pg_class as c where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'r'`

// TestDumpRestore: an outbox that goes through pg_dump, into another major version too,
// holds what it held, rights included, and goes on: shards are where claims look for them,
// claims made before are settled by their tokens, and new ids and tokens are new.
func TestDumpRestore(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	worker := db.Role(t)
	run(t, conn, "select outbox.grant_worker($1)", worker.Name)
	run(t, conn, `select outbox.configure('{"lease": "1 h", "default_quota": 1000}'), outbox.set_quota('a', 50, true), outbox.pause('paused', null, 'why "not"')`)
	for _, namespace := range []string{"a", "b", "ünïcode\n\t\\"} {
		fill(t, conn, namespace, "q", 60, 100)
	}
	fill(t, conn, "paused", "q", 5, 0)
	claimedBefore := claim(t, conn, "n1", 30)
	for i, how := range []string{"complete", "release"} {
		if !settle(t, conn, how, claimedBefore[i].ID, claimedBefore[i].Token) {
			t.Fatalf("%s: lost", how)
		}
	}
	run(t, conn, `select outbox.fail(array[$1::bigint], array[$2::bigint], array['it broke'])`, claimedBefore[2].ID, claimedBefore[2].Token)
	run(t, conn, `select outbox.cancel(array['b-60'])`)
	before := one[string](t, conn, dumpContent)
	described := describeSchema(t, conn, true) // the restores are at the same time, the connection is one
	major := one[int](t, conn, `select current_setting('server_version_num')::int / 10000`)

	check := func(t *testing.T, command []string, target pgtest.Database, how string, schema bool) {
		restored[how](t, command, db.DSN, target.DSN)
		to, err := pgx.Connect(t.Context(), target.DSN)
		if err != nil {
			t.Fatal(err)
		}
		defer to.Close(context.WithoutCancel(t.Context()))
		if diff := lineDiff(before, one[string](t, to, dumpContent)); diff != "" {
			t.Errorf("the content differs, dumped (-), restored (+):\n%s", diff)
		}
		if schema { // another major version writes some definitions otherwise
			wantSchema(t, to, described)
		}
		status, err := migrations.Version(t.Context(), target.DSN)
		if err != nil || status.Version != latestVersion(t) || status.Dirty {
			t.Errorf("Version = %+v, %v", status, err)
		}
		mustUp(t, target.DSN, migrations.Options{})
		if wrong := one[int](t, to, `select count(*) from outbox.messages as m
			where m.shard <> outbox.shard_of(m.dispatch_key, (select c.shard_count from outbox.config as c))`); wrong != 0 {
			t.Errorf("%d messages are on other shards than their keys hash to", wrong)
		}

		// Rights: the worker's are there, and nobody else's.
		if rights := one[string](t, to, `select format('%s %s %s', has_function_privilege($1, 'outbox.claim_fair(text,int[],int,bigint,boolean)', 'execute'),
			has_function_privilege('public', 'outbox.claim_fair(text,int[],int,bigint,boolean)', 'execute'), has_table_privilege($1, 'outbox.pending', 'select'))`,
			worker.Name); rights != "t f f" {
			t.Errorf("the worker may claim, everybody may claim, the worker may read tables: %s, want t f f", rights)
		}

		// It goes on.
		if !settle(t, to, "complete", claimedBefore[3].ID, claimedBefore[3].Token) {
			t.Error("INV-9: a claim from before the dump cannot be settled")
		}
		if id := one[*int64](t, to, `select outbox.enqueue('b', 'q', 'b-1', '')`); id != nil {
			t.Errorf("INV-3: a key from before was taken again, as %d", *id)
		}
		last := one[int64](t, to, `select max(m.id) from outbox.message as m`)
		if id := put(t, to, "b", "q", "new"); id <= last {
			t.Errorf("a new message has the id %d, after %d", id, last)
		}
		due := one[int](t, to, `select count(*) from outbox.pending as p where p.namespace not in ('a', 'paused')`)
		got := claim(t, to, "n2", 1000)
		others := 0
		for _, r := range got {
			if r.Token <= claimedBefore[0].Token {
				t.Fatalf("INV-9: a new claim has the token %d, after %d", r.Token, claimedBefore[0].Token)
			}
			if r.Namespace != "a" {
				others++
			}
		}
		if a := one[int](t, to, `select count(*) from outbox.claimed as c where c.namespace = 'a'`); others != due || a != 50 {
			t.Errorf("claimed %d messages of %d due, and INV-4: %d of a strict quota of 50", others, due, a)
		}
	}

	server := pg.Server()
	for how := range restored {
		t.Run(fmt.Sprintf("same server, %s", how), func(t *testing.T) {
			t.Parallel()
			command := clientOf(major)
			if command == nil {
				t.Skipf("no client programs of PostgreSQL %d: apt-get install postgresql-client-%[1]d, or integration/images/build %[1]d", major)
			}
			name := fmt.Sprintf("restored_%s_%s", how, db.Name)
			target, err := server.CreateDatabase(t.Context(), name, "")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := server.DropDatabase(context.WithoutCancel(t.Context()), name); err != nil {
					t.Error(err)
				}
			})
			check(t, command, target, how, true)
		})
	}
	newest := 18
	for imageOf(newest) == "" && newest > major+1 {
		newest--
	}
	if newest > major {
		t.Run("into a newer PostgreSQL", func(t *testing.T) {
			t.Parallel()
			if imageOf(newest) == "" {
				t.Skipf("no image of a newer PostgreSQL than %d: integration/images/build 18", major)
			}
			other, err := pgtest.Start(t.Context(), pgtest.Options{Kind: pgtest.KindDocker, Major: newest})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := other.Stop(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			})
			admin, err := pgx.Connect(t.Context(), other.AdminDSN())
			if err != nil {
				t.Fatal(err)
			}
			defer admin.Close(context.WithoutCancel(t.Context()))
			run(t, admin, "create role "+pgx.Identifier{worker.Name}.Sanitize()) // as pg_dumpall --roles-only does
			for how := range restored {
				target, err := other.CreateDatabase(t.Context(), "restored_"+how, "")
				if err != nil {
					t.Fatal(err)
				}
				check(t, clientOf(newest), target, how, false)
			}
		})
	}
}
