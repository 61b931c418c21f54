package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// checkSession refuses connections on which a Sweeper would not work.
//
// Those of a pooler are some where the connection's query mode counts on one session
// behind it: in transaction mode the statement that a call has prepared is not there at
// the next one, or is another client's. That a pooler is there shows in the process id: it
// tells one of its own.
func checkSession(ctx context.Context, db DB) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{AccessMode: pgx.ReadOnly})
	if err != nil {
		return wrap("begin", err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // nothing was written
	conn := tx.Conn()
	if conn == nil {
		return nil
	}
	if err := checkEncoding(tx); err != nil {
		return err
	}
	mode := conn.Config().DefaultQueryExecMode
	if mode != pgx.QueryExecModeCacheStatement && mode != pgx.QueryExecModeDescribeExec {
		return nil
	}
	var pid uint32
	if err := tx.QueryRow(ctx, "select pg_catalog.pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
		return wrap("ask for the session's process id", err)
	}
	if pid != conn.PgConn().PID() {
		return fmt.Errorf("%w: the query mode is %q", ErrPooler, mode)
	}
	return nil
}

// ErrPooler is why a Sweeper does not start on connections that go through a pooler and
// prepare statements, the default of pgx.
var ErrPooler = errors.New("the connection goes through a pooler, where prepared statements are lost: add default_query_exec_mode=cache_describe to the connection string")
