package deadletters

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// ChunkRows is how many messages one transaction looks at or changes: few, so that locks are held
// for a short time, and a stop loses little.
const ChunkRows = 1000

// InTx runs do in a transaction, and may run it again where other transactions were in the way.
type InTx func(ctx context.Context, do func(pgx.Tx) error) error

// Count counts what the filter chooses, up to most (0: all).
func Count(ctx context.Context, read InTx, f Filter, now time.Time, most int64) (n int64, err error) {
	pages := f.Pages(now, false, nil)
	for {
		var rows []Letter
		var next *Cursor
		err := read(ctx, func(tx pgx.Tx) (err error) {
			rows, next, err = pages.Read(ctx, tx, ChunkRows)
			return err
		})
		if err != nil {
			return n, err
		}
		n += int64(len(rows))
		if most > 0 && n >= most {
			return most, nil
		}
		if next == nil {
			return n, nil
		}
		pages.After = next
	}
}

// Redrive makes pending again what the filter chooses, the oldest first, in chunks, no faster than
// rate (nil: as fast as it goes), and at most most (0: all). It stops between two chunks when ctx
// ends, and then returns the cause; a chunk that has begun goes on with working. told, where it is not nil,
// hears after each chunk how many are done. The number of messages is returned beside an error too.
func Redrive(ctx, working context.Context, write InTx, f Filter, now time.Time, most int64, rate *Rate, told func(done int64)) (done int64, err error) {
	pages := f.Pages(now, false, nil)
	began := time.Now()
	for {
		if err := sleep(ctx, rate.Wait(done, time.Since(began))); err != nil {
			return done, err
		}
		chunk := rate.Chunk()
		if most > 0 {
			chunk = min(chunk, most-done)
		}
		if chunk == 0 {
			return done, nil
		}
		var n int64
		var next *Cursor
		err := write(working, func(tx pgx.Tx) (err error) {
			n, next, err = redrivePage(working, tx, pages, chunk)
			return err
		})
		if err != nil {
			return done, err
		}
		done += n
		if told != nil {
			told(done)
		}
		if next == nil {
			return done, nil
		}
		pages.After = next
	}
}

// redrivePage redrives up to most of the dead letters that match on the next page, and returns how many, and
// where to go on; nil: there are no more.
func redrivePage(ctx context.Context, tx pgx.Tx, pages *Pages, most int64) (int64, *Cursor, error) {
	rows, next, err := pages.Read(ctx, tx, ChunkRows)
	if err != nil {
		return 0, nil, err
	}
	if int64(len(rows)) > most {
		rows = rows[:most]
		next = &Cursor{rows[most-1].FailedAt, rows[most-1].ID}
	}
	ids := make([]int64, len(rows))
	for i, row := range rows {
		ids[i] = row.ID
	}
	back, err := RedriveIDs(ctx, tx, ids)
	return int64(len(back)), next, err
}

// RedriveIDs redrives messages, and returns the ids of those that were.
func RedriveIDs(ctx context.Context, tx pgx.Tx, ids []int64) (map[int64]bool, error) {
	rows, err := tx.Query(ctx, `select r from outbox.redrive(coalesce($1::bigint[], '{}')) as r`, ids)
	if err != nil {
		return nil, fmt.Errorf("redrive: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, fmt.Errorf("redrive: %w", err)
	}
	back := make(map[int64]bool, len(list))
	for _, id := range list {
		back[id] = true
	}
	return back, nil
}

// sleep waits, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
