package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// deadLetter is a row of outbox.failed.
type deadLetter struct {
	ID                  int64
	Namespace, Queue    string
	Key                 *string
	Attempts            int
	CreatedAt, FailedAt time.Time
	Error               *string
	Matches             bool
}

func deadLetters(t *testing.T, q querier, args string, values ...any) []deadLetter {
	t.Helper()
	rows, err := q.Query(t.Context(), "select * from outbox.failed("+args+")", values...)
	if err != nil {
		t.Fatalf("%s: %v", args, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[deadLetter])
	if err != nil {
		t.Fatalf("%s: %v", args, err)
	}
	return all
}

// deadFill makes n dead letters of the namespaces a and b in turns, of three routes, each some
// with the same time, and beside them messages in every other state.
func deadFill(t *testing.T, conn *pgx.Conn, n int) {
	t.Helper()
	run(t, conn, `select outbox.enqueue((array['a','b'])[1 + g % 2], 'q' || g % 3, 'k' || g, '') from generate_series(1, $1::int) as g`, n)
	for _, row := range claim(t, conn, "n1", n) {
		run(t, conn, "select outbox.fail(array[$1::bigint], array[$2::bigint], array['HTTP 50' || $3 || ' from ' || $4])", row.ID, row.Token, fmt.Sprint(row.ID%5), row.Key)
	}
	run(t, conn, "update outbox.settled set settled_at = timestamptz '2026-01-01 00:00:00Z' + (id / 7) * interval '1 min'")
	run(t, conn, `select outbox.enqueue('a', 'q0', 'x' || g, '') from generate_series(1, 4) as g`)
	rows := claim(t, conn, "n1", 3)
	settle(t, conn, "complete", rows[0].ID, rows[0].Token)
	run(t, conn, "select outbox.cancel(array[$1])", rows[1].Key)
}

// TestFailed: every filter, in both orders and by pages of any size, gives what a plain
// query over the tables gives.
func TestFailed(t *testing.T) {
	t.Parallel()
	conn := pg.New(t).Connect(t)
	deadFill(t, conn, 60)
	for _, c := range []struct{ args, where string }{
		{"", "true"},
		{"in_namespace => 'a'", "s.namespace = 'a'"},
		{"in_namespace => 'nobody'", "false"},
		{"in_task_queue => 'q1'", "s.task_queue = 'q1'"},
		{"in_namespace => 'b', in_task_queue => 'q2'", "s.namespace = 'b' and s.task_queue = 'q2'"},
		{"with_error => 'http 503'", "s.error like 'HTTP 503%'"},
		{"with_error => '%'", "false"},
		{"in_namespace => 'a', with_error => 'FROM K1'", "s.namespace = 'a' and s.error like '% from k1%'"},
		{"since => '2026-01-01 00:03Z'", "s.settled_at >= '2026-01-01 00:03Z'"},
		{"until => '2026-01-01 00:03Z'", "s.settled_at < '2026-01-01 00:03Z'"},
		{"since => '2026-01-01 00:03Z', until => '2026-01-01 00:06Z'", "s.settled_at >= '2026-01-01 00:03Z' and s.settled_at < '2026-01-01 00:06Z'"},
		{"in_namespace => 'a', since => '2026-01-01 00:03Z', until => '2026-01-01 00:06Z'", "s.namespace = 'a' and s.settled_at >= '2026-01-01 00:03Z' and s.settled_at < '2026-01-01 00:06Z'"},
	} {
		for _, newest := range []bool{true, false} {
			order := "s.settled_at, s.id"
			if strings.Contains(c.args, "namespace") {
				order = "s.id"
			}
			if newest {
				order = strings.ReplaceAll(order+",", ",", " desc,")
				order = strings.TrimSuffix(order, ",")
			}
			want := list[int64](t, conn, "select s.id from outbox.settled as s where s.outcome = 'failed' and "+c.where+" order by "+order)
			for _, page := range []int{1, 3, 7, 60, 1000} {
				var got []int64
				args := fmt.Sprintf("%s, max => %d, newest => %v", c.args, page, newest)
				args = strings.TrimPrefix(args, ", ")
				var rows []deadLetter
				for n := 0; ; n++ {
					if n == 0 {
						rows = deadLetters(t, conn, args)
					} else {
						last := rows[len(rows)-1]
						rows = deadLetters(t, conn, args+", after_at => $1, after_id => $2", last.FailedAt, last.ID)
					}
					for i, row := range rows {
						if row.Matches {
							got = append(got, row.ID)
						} else if i < len(rows)-1 {
							t.Fatalf("%s: one that does not match is not the last", args)
						}
					}
					if len(rows) == 0 || n > 100 {
						break
					}
				}
				if !slices.Equal(got, want) {
					t.Fatalf("%s: %v, want %v", args, got, want)
				}
			}
		}
	}
	row := deadLetters(t, conn, "max => 1")[0]
	if *row.Key != "k60" || row.Namespace != "a" || row.Queue != "q0" || row.Attempts != 1 || *row.Error != "HTTP 500 from k60" || row.CreatedAt.Before(row.FailedAt) || !row.Matches {
		t.Errorf("%+v", row)
	}
	run(t, conn, "update outbox.settled set error = null where id = $1", row.ID)
	if row := deadLetters(t, conn, "with_error => 'from k60'"); len(row) != 1 || *row[0].Error != "HTTP 500 from k60" {
		t.Errorf("without an error of its own: %+v", row)
	}
	_, err := conn.Exec(t.Context(), "select outbox.failed(since => now(), until => now())")
	wantError(t, err, "OB001", "failed", "until is not later than since")
}
