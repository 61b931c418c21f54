package integration

import "testing"

// INV-15: there is no way for a client to tell the outbox an instant: no public function
// takes one but for two calls of operators, and nobody but the owner may write to a table. Times that
// a caller gives are spans.
func TestNoInstantComesIn(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	takers := list[string](t, db.Pool, `select p.oid::regprocedure::text
from pg_proc as p cross join unnest(p.proargtypes) as a(type) join pg_type as y on y.oid = a.type
where p.pronamespace = 'outbox'::regnamespace and p.prosecdef and p.proname not in ('failed', 'pause') -- what was settled between two instants; until when, by the database's clock
  and (y.typcategory = 'D' or y.typelem in (select e.oid from pg_type as e where e.typcategory = 'D'))`)
	if len(takers) > 0 {
		t.Errorf("these take an instant from their caller: %v", takers)
	}
	spans := one[int](t, db.Pool, `select count(*) from pg_proc as p
where p.pronamespace = 'outbox'::regnamespace and p.prosecdef and 'interval'::regtype = any (p.proargtypes)`)
	if spans < 3 {
		t.Errorf("%d functions take a span, want enqueue, extend and prune at least: the test looks at the wrong thing", spans)
	}
	for _, grant := range []string{"grant_producer", "grant_worker", "grant_operator"} {
		role := db.Role(t)
		run(t, db.Pool, "select outbox."+grant+"($1)", role.Name)
		writable := list[string](t, db.Pool, `select c.oid::regclass::text from pg_class as c
where c.relnamespace = 'outbox'::regnamespace and c.relkind in ('r', 'v', 'p')
  and has_table_privilege($1, c.oid, 'insert, update, delete, truncate')`, role.Name)
		if len(writable) > 0 {
			t.Errorf("%s lets a role write %v", grant, writable)
		}
	}
}
