package integration

import (
	"slices"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

// ownRights are the rights that a role was given itself, on whatever there is in the schema.
const ownRights = `
	select x.what || ' ' || a.privilege_type
	from (
	  select 'schema' as what, n.nspacl as acl from pg_namespace as n where n.nspname = 'outbox'
	  union all select p.oid::regprocedure::text, p.proacl from pg_proc as p where p.pronamespace = 'outbox'::regnamespace
	  union all select c.oid::regclass::text, c.relacl from pg_class as c where c.relnamespace = 'outbox'::regnamespace
	) as x
	cross join lateral aclexplode(x.acl) as a
	where a.grantee = $1::regrole order by 1`

// TestRevoke: a revoke_ function takes back all that its grant_ function gave, and nothing that
// another role has.
func TestRevoke(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	for _, kind := range []string{"producer", "worker", "operator"} {
		role, other := db.Role(t), db.Role(t)
		for _, r := range []string{role.Name, other.Name} {
			run(t, conn, "select outbox.grant_"+kind+"($1)", r)
		}
		before := list[string](t, conn, ownRights, other.Name)
		if given := list[string](t, conn, ownRights, role.Name); len(given) < 5 || !slices.Equal(given, before) {
			t.Fatalf("%s has %q, %q", kind, given, before)
		}
		run(t, conn, "select outbox.revoke_"+kind+"($1)", role.Name)
		if left := list[string](t, conn, ownRights, role.Name); len(left) != 0 {
			t.Errorf("a former %s still has %q", kind, left)
		}
		if after := list[string](t, conn, ownRights, other.Name); !slices.Equal(after, before) {
			t.Errorf("another %s has %q, before %q", kind, after, before)
		}
		_, err := db.Connect(t, pgtest.As(role)).Exec(t.Context(), "select outbox.enqueue('n', 'q', 'k', '')")
		wantError(t, err, "42501")
		run(t, conn, "select outbox.revoke_"+kind+"($1)", role.Name) // there is nothing to take back, which is no error
	}
}

// TestRevokeOfMore: rights that a role needs as something more are not taken from it: the call
// says what to do, and changes nothing.
func TestRevokeOfMore(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn := db.Connect(t)
	for _, c := range []struct{ grant, revoke, hint string }{
		{"worker", "producer", "revoke_worker()"},
		{"operator", "producer", "revoke_operator()"},
		{"operator", "worker", "revoke_operator()"},
	} {
		role := db.Role(t)
		run(t, conn, "select outbox.grant_"+c.revoke+"($1)", role.Name)
		run(t, conn, "select outbox.grant_"+c.grant+"($1)", role.Name)
		before := list[string](t, conn, ownRights, role.Name)
		_, err := conn.Exec(t.Context(), "select outbox.revoke_"+c.revoke+"($1)", role.Name)
		wantError(t, err, "OB001", "revoke_"+c.revoke, "role", c.hint)
		if after := list[string](t, conn, ownRights, role.Name); !slices.Equal(after, before) {
			t.Errorf("revoke_%s of a %s left %q of %q", c.revoke, c.grant, after, before)
		}
		run(t, conn, "select outbox.revoke_"+c.grant+"($1)", role.Name)
		if left := list[string](t, conn, ownRights, role.Name); len(left) != 0 {
			t.Errorf("after revoke_%s it has %q", c.grant, left)
		}
	}
	// Nor does a role lose what it was given as something less.
	for _, c := range []struct{ grant, revoke string }{{"producer", "worker"}, {"producer", "operator"}, {"worker", "operator"}} {
		role := db.Role(t)
		run(t, conn, "select outbox.grant_"+c.grant+"($1)", role.Name)
		before := list[string](t, conn, ownRights, role.Name)
		_, err := conn.Exec(t.Context(), "select outbox.revoke_"+c.revoke+"($1)", role.Name)
		wantError(t, err, "OB001", "revoke_"+c.revoke, "no "+c.revoke, "revoke_"+c.grant+"()")
		if after := list[string](t, conn, ownRights, role.Name); !slices.Equal(after, before) {
			t.Errorf("revoke_%s of a %s left %q of %q", c.revoke, c.grant, after, before)
		}
	}
}

// TestRevokeArguments: nobody, everybody and the owner are refused, and only the owner may call.
func TestRevokeArguments(t *testing.T) {
	t.Parallel()
	db := pg.New(t)
	conn, nobody := db.Connect(t), db.Role(t)
	owner := one[string](t, conn, "select nspowner::regrole::text from pg_namespace where nspname = 'outbox'")
	for _, kind := range []string{"producer", "worker", "operator"} {
		for _, call := range []string{"grant_" + kind, "revoke_" + kind} {
			for _, none := range []string{"null", "''"} {
				_, err := conn.Exec(t.Context(), "select outbox."+call+"("+none+")")
				wantError(t, err, "OB001", call, "role", "Name")
			}
		}
		_, err := conn.Exec(t.Context(), "select outbox.revoke_"+kind+"($1)", owner)
		wantError(t, err, "OB001", "revoke_", "owns the schema")
		_, err = conn.Exec(t.Context(), "select outbox.revoke_"+kind+"('no such role')")
		wantError(t, err, "42704")
		if kind != "producer" {
			_, err = conn.Exec(t.Context(), "select outbox.revoke_"+kind+"('public')")
			wantError(t, err, "OB001", "revoke_"+kind, "role")
		}
		_, err = db.Connect(t, pgtest.As(nobody)).Exec(t.Context(), "select outbox.revoke_"+kind+"($1)", nobody.Name)
		wantError(t, err, "42501")
	}
	run(t, conn, "select outbox.grant_producer('public')")
	run(t, conn, "select outbox.revoke_producer('public')")
	_, err := db.Connect(t, pgtest.As(nobody)).Exec(t.Context(), "select outbox.enqueue('n', 'q', 'k', '')")
	wantError(t, err, "42501")
	put(t, conn, "n", "q", "k") // the owner can
}
