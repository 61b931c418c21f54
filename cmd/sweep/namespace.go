package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// warnUnknown says so on standard error where nothing open and no setting bears the name of a
// namespace, which may be mistyped. What a command does about a namespace that has nothing yet
// looks like success, and may be meant. A role that must not ask is told nothing.
func (a *app) warnUnknown(ctx context.Context, conn *pgx.Conn, namespace string) error {
	var known bool
	err := inReadTx(ctx, conn, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `select q.known from outbox.quota($1::text) as q`, namespace).Scan(&known)
	})
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "42501": // insufficient_privilege
		return nil
	case err != nil:
		return fmt.Errorf("look for the namespace: %w", err)
	case !known:
		a.warn(fmt.Sprintf("namespace %q has no settings, and no message that is pending, claimed or failed: is that its name?", namespace))
	}
	return nil
}

// warnUnknownQueue says so on standard error where a namespace has messages, and none of a task queue, which may be
// mistyped: as far as outbox.route_state looks, and only where that has seen all routes. A role that must not ask is told
// nothing.
func (a *app) warnUnknownQueue(ctx context.Context, conn *pgx.Conn, namespace, queue string) error {
	const most = 1000
	var queues []string
	var whole, known bool
	err := inReadTx(ctx, conn, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			select coalesce(array_agg(r.task_queue) filter (where r.due + r.not_due + r.claimed + r.failed > 0), '{}'),
			       count(*) < $3::int and coalesce(sum(r.due) < g.count_cap and sum(r.not_due) < g.count_cap
			         and sum(r.claimed) < g.count_cap and sum(r.failed) < g.count_cap, true),
			       coalesce(bool_or(r.task_queue = $2::text and r.due + r.not_due + r.claimed + r.failed > 0), false)
			from outbox.settings() as g left join outbox.route_state($1::text, $3::int) as r on true
			group by g.count_cap`, namespace, queue, most).Scan(&queues, &whole, &known)
	})
	var pg *pgconn.PgError
	switch {
	case errors.As(err, &pg) && pg.Code == "42501": // insufficient_privilege
		return nil
	case err != nil:
		return fmt.Errorf("look for the task queue: %w", err)
	case known || !whole && nearest(queue, queues) == "" || len(queues) == 0: // of a namespace without messages warnUnknown tells
		return nil
	}
	text := fmt.Sprintf("namespace %q has no message of task queue %q that is pending, claimed or failed", namespace, queue)
	if !whole {
		text = fmt.Sprintf("namespace %q has no message of task queue %q among those that were looked at", namespace, queue)
	}
	if near := nearest(queue, queues); near != "" {
		text += fmt.Sprintf(": did you mean %q?", near)
	}
	a.warn(text)
	return nil
}

// nearest is the word that differs least from another one, by up to a third of its letters and three; "": none does.
func nearest(word string, words []string) (near string) {
	best := min(3, 1+len(word)/3) + 1
	for _, w := range words {
		if len(w)-len(word) >= best || len(word)-len(w) >= best {
			continue
		}
		if d := distance(word, w); d < best {
			near, best = w, d
		}
	}
	return near
}

// distance is in how many bytes two words differ, by Levenshtein.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := before
			if a[i] != b[j] {
				change++
			}
			before = row[j+1]
			row[j+1] = min(change, before+1, row[j]+1)
		}
	}
	return row[len(b)]
}

// warn says something about the result on standard error.
func (a *app) warn(text string) {
	if a.jsonLog {
		a.log.Warn(text)
		return
	}
	fmt.Fprintf(a.stderr, "sweep: %s\n", visible(text))
}
