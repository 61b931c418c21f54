package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/driver"
)

const maxTries = 5

// pins are settings that each transaction of a command begins with, in the same round
// trip, so that no setting of the role changes which functions are called and how results
// are written. With the role's search_path, somebody's unnest(text[]) in a schema on it
// would run with the rights of the role that runs sweep. The settings last for the
// transaction: a pooler in transaction mode loses settings of a session, and refuses most
// settings of a new connection. TimeZone is not among them: times are shown in it.
const pins = "set local search_path = pg_catalog, pg_temp; set local datestyle = iso; set local intervalstyle = postgres; " +
	"set local extra_float_digits = 1; set local bytea_output = hex"

// toWrite begins a transaction that writes: read committed, whatever the role's default. Where
// default_transaction_read_only is on, somebody wants no changes: the transaction fails, as those of nodes do.
var toWrite = pgx.TxOptions{BeginQuery: "begin isolation level read committed; " + pins}

// readOnly begins a transaction that can write nothing and has one snapshot.
var readOnly = pgx.TxOptions{BeginQuery: "begin isolation level repeatable read, read only; " + pins}

// inTx runs do in a transaction that writes, up to maxTries times: again where other
// transactions were in its way ([driver.TryAgain]).
func inTx(ctx context.Context, conn *pgx.Conn, do func(tx pgx.Tx) error) error {
	for try := 1; ; try++ {
		err := pgx.BeginTxFunc(ctx, conn, toWrite, do)
		if err == nil || try == maxTries || !driver.TryAgain(err) {
			return err
		}
	}
}

// inReadTx runs do in a transaction that can write nothing and has one snapshot.
func inReadTx(ctx context.Context, conn *pgx.Conn, do func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, conn, readOnly, do)
}

// stopGrace is how long a command may go on with what it has begun when it is asked to
// stop.
const stopGrace = 10 * time.Second
