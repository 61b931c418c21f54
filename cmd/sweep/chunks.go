package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/internal/grace"
)

// chunkRows is how many messages one transaction of a long command changes: few, so that
// locks are held for a short time, and a stop loses little.
const chunkRows = 1000

// checkMax checks the flag --max of a command that works in chunks.
func checkMax(n int64) error {
	if n < 0 {
		return fmt.Errorf("--max must be 0 (no limit) or more, not %d", n)
	}
	return nil
}

// inChunks runs a statement again and again, each time in a transaction of its own. The
// statement changes at most $1 messages and returns how many it changed; args are its
// parameters from $2 on. It ends when it finds fewer than it may change, when it has
// changed limit messages (0: no limit), or when ctx ends. The number of changed messages
// is returned beside an error too.
func (a *app) inChunks(ctx context.Context, conn *pgx.Conn, limit int64, sql string, args ...any) (done int64, err error) {
	working, stop := grace.Context(ctx, stopGrace)
	defer stop()
	reported := time.Now()
	for {
		if ctx.Err() != nil {
			return done, withHint(fmt.Errorf("%w; %s done", context.Cause(ctx), plural(done, "message")), "Run it again for the rest.")
		}
		most := int64(chunkRows)
		if limit > 0 {
			most = min(most, limit-done)
		}
		if most == 0 {
			return done, nil
		}
		var changed int64
		err := inLockTx(working, conn, func(tx pgx.Tx) error {
			if err := tx.QueryRow(working, sql, append([]any{most}, args...)...).Scan(&changed); err != nil {
				return fmt.Errorf("%s: %w", a.command, err)
			}
			return nil
		})
		if err != nil {
			return done, err
		}
		done += changed
		if changed < most {
			return done, nil
		}
		if time.Since(reported) >= progressEvery {
			reported = time.Now()
			a.log.Info(a.command, "done", done)
		}
	}
}

// inNamespace is inChunks for a namespace, which is $2. Where there was nothing to change, and nothing of
// such a namespace at all, it says so.
func (a *app) inNamespace(ctx context.Context, conn *pgx.Conn, namespace string, limit int64, sql string) (done int64, err error) {
	done, err = a.inChunks(ctx, conn, limit, sql, namespace)
	if err == nil && done == 0 {
		err = a.warnUnknown(ctx, conn, namespace)
	}
	return done, err
}

// printCount prints how many messages a command has changed in chunks, also where it
// failed after some of them.
func (a *app) printCount(asJSON bool, result any, verb string, done int64, err error) error {
	switch {
	case err != nil && done == 0:
		return err
	case asJSON:
		return errors.Join(err, a.printJSON(result))
	}
	return errors.Join(err, a.printf("%s %s", verb, plural(done, "message")))
}
