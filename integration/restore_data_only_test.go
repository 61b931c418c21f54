package integration

import (
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// restoredContent is what a data-only restore brings: not when the migrations ran, nor what the
// target had as its default quota.
const restoredContent = `
	select string_agg(c.relname || ': ' || query_to_xml(format('select t::text from outbox.%I as t order by 1', c.relname), false, false, '')::text,
	                  e'\n' order by c.relname)
	from pg_class as c where c.relnamespace = 'outbox'::regnamespace and c.relkind = 'r'
	  and c.relname not in ('migration', 'schema_migrations', 'former_quota')`

// dataOnly are dumps without the schema.
var dataOnly = map[string]func(t *testing.T, command []string, from, to string){
	"copy": func(t *testing.T, command []string, from, to string) {
		dump := client(t, command, nil, "pg_dump", "--data-only", "-n", "outbox", "-T", "outbox.migration", "-T", "outbox.schema_migrations", "--dbname", from)
		client(t, command, dump, "psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "--dbname", to)
	},
	"inserts, custom": func(t *testing.T, command []string, from, to string) {
		dump := client(t, command, nil, "pg_dump", "--data-only", "--inserts", "--format=custom", "-n", "outbox",
			"-T", "outbox.migration", "-T", "outbox.schema_migrations", "--dbname", from)
		client(t, command, dump, "pg_restore", "--single-transaction", "--exit-on-error", "--dbname", to)
	},
}

// TestRestoreDataOnly: messages that are restored into a migrated outbox bring their settings along,
// so each is on a shard that is served.
func TestRestoreDataOnly(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	run(t, conn, `select outbox.configure('{"shard_count": 64, "default_quota": 100}')`)
	fill(t, conn, "a", "q", 60, 10)
	claim(t, conn, "n1", 10)
	before := one[string](t, conn, restoredContent)
	command := clientOf(one[int](t, conn, `select current_setting('server_version_num')::int / 10000`))
	if command == nil {
		t.Skip("no client programs of the server's version of PostgreSQL")
	}
	for how, restore := range dataOnly {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			target := pg.New(t)
			restore(t, command, db.DSN, target.DSN)
			wantRestored(t, target, before)
		})
	}
}

func wantRestored(t *testing.T, target *pgtest.DB, before string) {
	t.Helper()
	to := target.Connect(t)
	if diff := lineDiff(before, one[string](t, to, restoredContent)); diff != "" {
		t.Errorf("the content differs, dumped (-), restored (+):\n%s", diff)
	}
	if got := claim(t, to, "n2", 1000); len(got) != 50 {
		t.Errorf("claimed %d messages, want 50", len(got))
	}
	wantSound(t, to)
}
