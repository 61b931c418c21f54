package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

const maxTries = 5

// inTx runs do in a transaction, read committed whatever the role's default, and
// tries again when the database asks for that (deadlock, serialization failure).
func inTx(ctx context.Context, conn *pgx.Conn, do func(tx pgx.Tx) error) error {
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, do)
		if err == nil || try == maxTries || !isRetryable(err) {
			return err
		}
	}
}

// inReadTx runs do in a transaction that can write nothing and sees one instant.
func inReadTx(ctx context.Context, conn *pgx.Conn, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, do)
}

func isRetryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40P01" || pg.Code == "40001")
}

// graceful returns a context that goes on for a while after ctx has ended, for work
// that must not stop half-way.
func graceful(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	return out, func() { stop(); cancel() }
}
