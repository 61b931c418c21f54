package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// standIns are the claims that are not fair and that the demo and the bench compare
// claim_fair with.
var standIns = map[string]struct {
	file     string
	function string // what the file makes; claim_fair itself is put in place of the fair one
}{
	"demo":  {filepath.Join("demo", "first_come.sql"), "outbox.claim_fair"},
	"bench": {filepath.Join("bench", "bench.sql"), "bench.claim_blind"},
}

// signature is the functions of a name: arguments and columns of the result, with their
// types, one line for each overload.
func signature(ctx context.Context, q querier, name string) (string, error) {
	rows, _ := q.Query(ctx, `
select format('%s %s %s', p.proargnames, array(select t.oid::regtype from unnest(p.proallargtypes) with ordinality as t(oid, n) order by t.n), p.proargmodes)
from pg_proc as p where p.oid in (select f.oid from pg_proc as f where f.pronamespace::regnamespace || '.' || f.proname = $1) order by p.oid`, name)
	overloads, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return strings.Join(overloads, "\n"), err
}

// installStandIn runs the script, and fails unless its function is called as claim_fair is,
// and gives the same columns.
func installStandIn(ctx context.Context, conn *pgx.Conn, script, function string) error {
	want, err := signature(ctx, conn, "outbox.claim_fair")
	if err != nil {
		return err
	}
	if err := conn.PgConn().Exec(ctx, script).Close(); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	got, err := signature(ctx, conn, function)
	if err == nil && got != want {
		err = fmt.Errorf("%s is\n%s\nclaim_fair is\n%s", function, got, want)
	}
	return err
}

// The claims that the demo and the bench compare with have the arguments and the result of
// claim_fair: one that has others would not be called at all, and both would measure the fair
// claim twice.
func TestStandInsHaveTheSignatureOfTheClaim(t *testing.T) {
	t.Parallel()
	for name, standIn := range standIns {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(standIn.file)
			if err != nil {
				t.Fatal(err)
			}
			conn := pg.New(t).Connect(t)
			if err := installStandIn(t.Context(), conn, string(text), standIn.function); err != nil {
				t.Fatal(err)
			}
			// It claims the oldest, whosever they are.
			for _, key := range []string{"a-1", "a-2", "a-3", "b-1"} {
				put(t, conn, key[:1], "q", key)
			}
			rows, _ := conn.Query(t.Context(), "select "+claimColumns+" from "+standIn.function+"('n1', outbox.all_shards(), 3, null, true)")
			claimed, err := pgx.CollectRows(rows, pgx.RowToStructByName[claimRow])
			if err != nil {
				t.Fatal(err)
			}
			for i, want := range []string{"a-1", "a-2", "a-3"} {
				if len(claimed) != 3 || claimed[i].Key != want {
					t.Fatalf("claimed %+v, want the three oldest", claimed)
				}
			}
		})
	}
}

// A stand-in whose signature is not that of claim_fair is noticed.
func TestStandInsOfAnotherSignature(t *testing.T) {
	t.Parallel()
	for name, standIn := range standIns {
		for what, change := range map[string][2]string{
			"an argument less":      {"payloads boolean", ""},
			"an argument renamed":   {"max_bytes", "most_bytes"},
			"a column less":         {",\n               payload_bytes int, suspect int, created_at timestamptz, due_at timestamptz, claimed_at timestamptz)", ")"},
			"a column renamed":      {"lease_until timestamptz", "leased_until timestamptz"},
			"a column's type":       {"suspect int,", "suspect bigint,"},
			"two columns exchanged": {"pass int,\n               payload_bytes int", "payload_bytes int,\n               pass int"},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				t.Parallel()
				text, err := os.ReadFile(standIn.file)
				if err != nil {
					t.Fatal(err)
				}
				if !strings.Contains(string(text), change[0]) {
					t.Fatalf("%s has no %q: change this test along with it", standIn.file, change[0])
				}
				head, body, _ := strings.Cut(string(text), "language ") // the signature stands before
				head = strings.ReplaceAll(head, change[0], change[1])
				if change[1] == "" {
					head = head[:strings.LastIndex(head, ",")] + strings.Replace(head[strings.LastIndex(head, ","):], ",", "", 1)
				}
				conn := pg.New(t).Connect(t)
				run(t, conn, "set check_function_bodies = off")
				if err := installStandIn(t.Context(), conn, head+"language "+body, standIn.function); err == nil {
					t.Error("it counts as a claim like claim_fair")
				}
			})
		}
	}
}
