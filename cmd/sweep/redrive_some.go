package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/deadletters"
	"github.com/fairclaim/fairclaim/internal/grace"
)

// redriveAsks is from how many messages on a redrive that is chosen by filters asks first.
const redriveAsks = 1000

// some redrives the dead letters that the flags choose, the oldest first.
func (c *redriveCmd) some(ctx context.Context, a *app) error {
	return a.withConn(ctx, func(conn *pgx.Conn) error {
		now, err := databaseTime(ctx, conn)
		if err != nil {
			return err
		}
		if c.DryRun {
			n, err := c.count(ctx, conn, now, c.Max)
			if err != nil {
				return err
			}
			if c.JSON {
				return a.printJSON(redriveResult{Would: &n})
			}
			return a.printf("would redrive %s", plural(n, "message"))
		}
		if err := c.ask(ctx, a, conn, now); err != nil {
			return err
		}
		done, err := c.redriveSome(ctx, a, conn, now)
		if err == nil && done == 0 && c.Namespace != "" {
			err = a.warnUnknown(ctx, conn, string(c.Namespace))
		}
		return a.printCount(c.JSON, redriveResult{Redriven: done}, "redriven", done, err)
	})
}

// namespace redrives the dead letters of a namespace, as some does.
func (c *redriveCmd) namespace(ctx context.Context, a *app) error {
	return a.withConn(ctx, func(conn *pgx.Conn) error {
		now, err := databaseTime(ctx, conn)
		if err != nil {
			return err
		}
		if err := c.ask(ctx, a, conn, now); err != nil {
			return err
		}
		done, err := a.inNamespace(ctx, conn, string(c.Namespace), c.Max, `select outbox.redrive($2::text, $1::int)`)
		return a.printCount(c.JSON, redriveResult{Redriven: done}, "redriven", done, err)
	})
}

// ask asks where the flags choose more messages than somebody may have had in mind.
func (c *redriveCmd) ask(ctx context.Context, a *app, conn *pgx.Conn, now time.Time) error {
	most := int64(redriveAsks + 1)
	if c.Max > 0 {
		most = min(most, c.Max)
	}
	if c.Yes || most <= redriveAsks {
		return nil
	}
	n, err := c.count(ctx, conn, now, most)
	if err != nil || n <= redriveAsks {
		return err
	}
	return a.confirm(ctx, false, c.what())
}

func (c *redriveCmd) what() string {
	what := fmt.Sprintf("redrive more than %d messages", redriveAsks)
	if text := c.filter(time.Time{}).Names(); text != "" {
		what += " (" + text + ")"
	}
	return what
}

// count counts what the flags choose, up to most (0: all).
func (c *redriveCmd) count(ctx context.Context, conn *pgx.Conn, now time.Time, most int64) (int64, error) {
	read := func(ctx context.Context, do func(pgx.Tx) error) error { return inReadTx(ctx, conn, do) }
	return deadletters.Count(ctx, read, c.filter(now), now, most)
}

// redriveSome redrives in chunks, no faster than --rate. The number of messages is returned beside an error
// too.
func (c *redriveCmd) redriveSome(ctx context.Context, a *app, conn *pgx.Conn, now time.Time) (done int64, err error) {
	working, stop := grace.Context(ctx, stopGrace)
	defer stop()
	reported := time.Now()
	write := func(ctx context.Context, do func(pgx.Tx) error) error { return inLockTx(ctx, conn, do) }
	done, err = deadletters.Redrive(ctx, working, write, c.filter(now), now, c.Max, c.Rate, func(done int64) {
		if time.Since(reported) >= progressEvery {
			reported = time.Now()
			a.log.Info(a.command, "done", done)
		}
	})
	if err != nil && ctx.Err() != nil {
		return done, withHint(fmt.Errorf("%w; %s done", err, plural(done, "message")), "Run it again for the rest.")
	}
	return done, err
}
