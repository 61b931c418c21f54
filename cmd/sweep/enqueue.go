package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/internal/grace"
)

const (
	batchRows  = 1000    // most lines of one statement
	batchBytes = 4 << 20 // most payload bytes of one statement; a line with more goes alone

	// How long a line waits for others to go to the database with.
	flushAfter = 100 * time.Millisecond
)

type enqueueCmd struct {
	Files  []string `arg:"" optional:"" name:"file" help:"Files of NDJSON; without a file, or for -, standard input."`
	Strict bool     `env:"SWEEP_ENQUEUE_STRICT" help:"Enqueue all or nothing: in one transaction, which ends at the first bad line."`
	jsonFlag
}

func (enqueueCmd) Help() string {
	return `Each line is a JSON object, a message:

    namespace, task_queue, dispatch_key   text, 1 to 512 bytes
    payload          any JSON value; its bytes are kept as they are
    payload_base64   in place of payload: any bytes
    content_type     without it "application/json", for payload_base64 "application/octet-stream"
    headers          an object of strings
    delay            "30s", "1h30m", "7d", or a number of seconds

The lines that the sink stdout writes can be read back: id, shard, attempt and times in them are ignored.

A message whose dispatch key exists in its namespace is a duplicate and not an error, so the same input can be given again. A bad line is reported on standard error and left out, and the exit code is 1. Empty lines are skipped.

Examples:

    sweep enqueue messages.ndjson
    echo '{"namespace":"acme","task_queue":"mail","dispatch_key":"acme/1","payload":{"to":"a@b.c"}}' | sweep enqueue
    zcat archive.ndjson.gz | sweep enqueue --strict --json`
}

// enqueueSummary is the result. After a strict run that failed, Enqueued and Duplicates
// are 0.
type enqueueSummary struct {
	Lines      int64 `json:"lines"`
	Enqueued   int64 `json:"enqueued"`
	Duplicates int64 `json:"duplicates"`
	Bad        int64 `json:"bad"`
}

// Run enqueues all files.
func (c *enqueueCmd) Run(ctx context.Context, a *app) error {
	files := c.Files
	if len(files) == 0 {
		files = []string{stdinName}
	}
	for _, name := range files {
		if err := checkInput(name); err != nil {
			return err
		}
	}
	if isTerminal(a.stdin) && len(c.Files) == 0 {
		a.log.Info("reading lines of JSON from the terminal, until Ctrl-D")
	}
	return a.withConn(ctx, func(conn *pgx.Conn) error {
		l := &loader{app: a, strict: c.Strict, started: time.Now()}
		err := l.load(ctx, conn, files)
		if err != nil && c.Strict {
			l.sum.Enqueued, l.sum.Duplicates = 0, 0
		}
		printed := l.printSummary(c.JSON)
		if err != nil {
			return err
		}
		if l.sum.Bad > 0 {
			return fmt.Errorf("%d of %s bad", l.sum.Bad, areLines(l.sum.Lines))
		}
		return printed
	})
}

func areLines(n int64) string {
	if n == 1 {
		return "1 line is"
	}
	return plural(n, "line") + " are"
}

// checkInput finds files that cannot be read, before anything is written.
func checkInput(name string) error {
	if name == stdinName {
		return nil
	}
	info, err := os.Stat(name)
	if err != nil {
		return &usageError{err: err}
	}
	if info.IsDir() {
		return usage("%s is a directory: give a file of NDJSON", name)
	}
	return nil
}

// loader writes lines in batches and keeps count. One goroutine owns it.
type loader struct {
	app     *app
	strict  bool
	started time.Time
	told    time.Time // when progress was last logged

	sum   enqueueSummary
	batch []inputLine
	bytes int
	taken string // the last line that was read
	last  string // all lines up to this one are written, or reported as bad
}

// load reads all files and enqueues their messages, in strict mode in one transaction.
func (l *loader) load(ctx context.Context, conn *pgx.Conn, files []string) error {
	limit := lineLimit(ctx, conn)
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	lines := readLines(reading, l.app.stdin, files, limit)

	if !l.strict {
		return l.stopped(ctx, l.pump(ctx, lines, func(ctx context.Context, batch []driver.Message) ([]driver.Enqueued, error) {
			return enqueueInOwnTx(ctx, conn, batch)
		}))
	}
	tx, err := conn.BeginTx(ctx, toWrite)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // does nothing after a commit
	err = l.pump(ctx, lines, func(ctx context.Context, batch []driver.Message) (found []driver.Enqueued, err error) {
		err = pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
			found, err = enqueueAll(ctx, savepoint, batch)
			return err
		})
		return found, err
	})
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%w; nothing was written", err)
	}
	finishing, stop := grace.Context(ctx, stopGrace)
	defer stop()
	if err := tx.Commit(finishing); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// stopped adds to the error of a run that ends early how far the run came.
func (l *loader) stopped(ctx context.Context, err error) error {
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		return nil
	}
	if l.last == "" {
		return fmt.Errorf("%w; nothing was written", err)
	}
	return withHint(fmt.Errorf("%w; done up to %s", err, l.last), "Run it again with the same input: messages that are enqueued already count as duplicates then.")
}

type sendFunc func(ctx context.Context, batch []driver.Message) ([]driver.Enqueued, error)

// pump takes lines until they end, or ctx does. It writes all lines that it has taken.
func (l *loader) pump(ctx context.Context, lines <-chan inputLine, send sendFunc) error {
	writing, stop := grace.Context(ctx, stopGrace)
	defer stop()
	idle := time.NewTimer(flushAfter)
	defer idle.Stop()
	for {
		select {
		case <-ctx.Done():
			return l.flush(writing, send)
		case <-idle.C:
			if err := l.flush(writing, send); err != nil {
				return err
			}
		case line, ok := <-lines:
			if !ok {
				return l.flush(writing, send)
			}
			if err := l.take(writing, line, send); err != nil {
				return err
			}
			if len(l.batch) == 1 {
				idle.Reset(flushAfter)
			}
		}
		l.progress()
	}
}

func (l *loader) take(ctx context.Context, line inputLine, send sendFunc) error {
	if line.fatal {
		if err := l.flush(ctx, send); err != nil {
			return err
		}
		return line.err
	}
	l.sum.Lines++
	defer func() { l.taken = line.at() }()
	if line.err != nil {
		if l.strict { // an earlier line of the batch may be bad too, and is reported first
			if err := l.flush(ctx, send); err != nil {
				return err
			}
		}
		return l.bad(line, line.err)
	}
	if l.bytes+len(line.message.Payload) > batchBytes || len(l.batch) == batchRows {
		if err := l.flush(ctx, send); err != nil {
			return err
		}
	}
	l.batch = append(l.batch, line)
	l.bytes += len(line.message.Payload)
	return nil
}

// flush writes the batch.
func (l *loader) flush(ctx context.Context, send sendFunc) error {
	if len(l.batch) > 0 {
		if err := l.write(ctx, l.batch, send); err != nil {
			return err
		}
	}
	l.last = l.taken
	clear(l.batch) // frees the payloads
	l.batch, l.bytes = l.batch[:0], 0
	return nil
}

// write enqueues lines. Where the database refuses some of them, it halves the batch until
// it has found which.
func (l *loader) write(ctx context.Context, lines []inputLine, send sendFunc) error {
	messages := make([]driver.Message, len(lines))
	for i, line := range lines {
		messages[i] = line.message
	}
	found, err := send(ctx, messages)
	switch {
	case err == nil:
		for _, e := range found {
			if e.Duplicate {
				l.sum.Duplicates++
			} else {
				l.sum.Enqueued++
			}
		}
		return nil
	case !isRefusal(err):
		return err
	case len(lines) == 1:
		return l.bad(lines[0], err)
	}
	half := len(lines) / 2
	if err := l.write(ctx, lines[:half], send); err != nil {
		return err
	}
	return l.write(ctx, lines[half:], send)
}

// bad reports a line that is left out; in strict mode it returns an error.
func (l *loader) bad(line inputLine, err error) error {
	l.sum.Bad++
	if l.strict {
		return fmt.Errorf("%s: %w", line.at(), err)
	}
	l.app.log.Warn("bad line", "at", line.at(), "error", err.Error())
	return nil
}

// isRefusal reports whether the database refused the data of a message: then other
// messages may pass.
func isRefusal(err error) bool {
	if errors.Is(err, driver.ErrBadArgument) || errors.Is(err, driver.ErrKeyTaken) || errors.Is(err, driver.ErrPayloadTooLarge) {
		return true
	}
	var pg *pgconn.PgError
	return errors.As(err, &pg) && len(pg.Code) == 5 && (pg.Code[:2] == "22" || pg.Code[:2] == "23") // data exception, constraint
}

func (l *loader) progress() {
	now := time.Now()
	if now.Sub(l.started) < progressEvery || now.Sub(l.told) < progressEvery {
		return
	}
	l.told = now
	l.app.log.Info("enqueueing", "enqueued", l.sum.Enqueued, "duplicates", l.sum.Duplicates, "bad", l.sum.Bad, "at", l.last)
}

func (l *loader) printSummary(asJSON bool) error {
	if asJSON {
		return l.app.printJSON(l.sum)
	}
	return l.app.printf("enqueued %d, duplicates %d, bad %d", l.sum.Enqueued, l.sum.Duplicates, l.sum.Bad)
}

// enqueueInOwnTx enqueues in a transaction of its own. It is read committed: above that, a
// key that another session writes at the same moment is an error instead of a duplicate.
func enqueueInOwnTx(ctx context.Context, conn *pgx.Conn, batch []driver.Message) (found []driver.Enqueued, err error) {
	err = inTx(ctx, conn, func(tx pgx.Tx) error {
		found, err = enqueueAll(ctx, tx, batch)
		return err
	})
	return found, err
}

// enqueueAll enqueues a batch. A single message goes alone: an error about it then names
// no position in the batch.
func enqueueAll(ctx context.Context, tx pgx.Tx, batch []driver.Message) ([]driver.Enqueued, error) {
	if len(batch) != 1 {
		return driver.EnqueueBatch(ctx, tx, batch)
	}
	e, err := driver.Enqueue(ctx, tx, batch[0])
	return []driver.Enqueued{e}, err
}
