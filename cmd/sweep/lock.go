package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// lockError is an error of a lock that was waited for in vain. It hides its cause, so that nobody tries again.
type lockError struct{ cause error }

func (e *lockError) Error() string { return e.cause.Error() }

// inLockTx is inTx for what takes locks that others hold for a moment: that of destinations, that of cancels, and
// those of rows. It waits for each lock twice as long as a claim may be left open (a minute at most), where the role's
// lock_timeout says nothing else; the error then names who holds the lock.
func inLockTx(ctx context.Context, conn *pgx.Conn, do func(tx pgx.Tx) error) error {
	var limit string
	err := inTx(ctx, conn, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, `
			select set_config('lock_timeout', case when current_setting('lock_timeout') = '0'
			         then least(2 * extract(epoch from g.claim_idle_timeout) * 1000, 60000)::bigint::text
			         else current_setting('lock_timeout') end, true)
			from outbox.settings() as g`).Scan(&limit)
		if err != nil {
			return fmt.Errorf("read the settings: %w", err)
		}
		err = do(tx)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "55P03" { // lock_not_available
			return &lockError{err}
		}
		return err
	})
	var locked *lockError
	if !errors.As(err, &locked) {
		return err
	}
	who, remedies, look := lockHolders(ctx, conn)
	what, _, _ := strings.Cut(locked.cause.Error(), ":")
	switch {
	case look != nil:
		return fmt.Errorf("%s: a lock was not granted within %s, and who holds it cannot be read: %w", what, limit, look)
	case who == "":
		return withHint(fmt.Errorf("%s: a lock was not granted within %s", what, limit), `Whoever had it may be gone: try again. It may be that of a message or a setting which somebody changes in a long transaction: select pid, query from pg_stat_activity where state = 'idle in transaction'.`)
	}
	return withHint(fmt.Errorf("%s: a lock was not granted within %s: it is held by %s", what, limit, who), "To end it: %s", remedies)
}

// lockHolders says who holds the lock of destinations, or that of cancels, which purge needs, too, and the SQL
// that ends them.
func lockHolders(ctx context.Context, conn *pgx.Conn) (who, remedies string, err error) {
	err = inReadTx(ctx, conn, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			select coalesce(string_agg(o.session, ', '), ''), coalesce(string_agg(o.remedy, '; '), '')
			from outbox.claim_obstacles(claims => true) as o
			where exists (select from pg_locks as l
			              where l.locktype = 'advisory' and l.classid = 'outbox.pending'::regclass and l.objsubid = 2
			                and l.objid in (1024, 1027) and l.granted
			                and l.database = (select d.oid from pg_database as d where d.datname = current_database())
			                and (o.remedy = format('select pg_terminate_backend(%s)', l.pid)
			                     or l.pid is null and starts_with(o.remedy, 'rollback prepared ')))`).Scan(&who, &remedies)
	})
	return who, remedies, err
}
