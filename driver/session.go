package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// ErrEncoding is why a call was refused before it reached the database: pgx sends and reads
// texts as they are, and the server would take them for ones in another encoding.
var ErrEncoding = errors.New("texts would be changed on the way: add client_encoding=UTF8 to the connection string")

// checkEncoding refuses a session that does not speak UTF-8, where db tells which session
// it is: a pool does not.
func checkEncoding(db any) error {
	conn, ok := db.(*pgx.Conn)
	if in, has := db.(interface{ Conn() *pgx.Conn }); !ok && has {
		conn = in.Conn()
	}
	if conn == nil {
		return nil
	}
	if encoding := conn.PgConn().ParameterStatus("client_encoding"); encoding != "UTF8" {
		return fmt.Errorf("%w: the session's is %q", ErrEncoding, encoding)
	}
	return nil
}

// ErrPooler is why [CheckSession] refuses connections that go through a pooler and prepare
// statements, the default of pgx.
var ErrPooler = errors.New("the connection goes through a pooler, where prepared statements are lost: add default_query_exec_mode=cache_describe to the connection string")

// ErrReadOnly is why [CheckSession] refuses sessions in which nothing can be written.
var ErrReadOnly = errors.New("the sessions are read only: a standby, or a role with default_transaction_read_only")

// CheckSession refuses connections on which the calls of this package would not work: whose
// texts are not UTF-8 ([ErrEncoding]), that are read only ([ErrReadOnly]), or that go through a pooler
// in a query mode that cannot work there ([ErrPooler]). A node calls it at its start.
//
// A query mode that prepares statements counts on one session behind the connection. Behind a
// pooler in transaction mode the statement that one call has prepared is not there at the
// next call, or is another client's. A pooler shows in the process id: it tells one of its
// own, not that of the session.
func CheckSession(ctx context.Context, db DB) error {
	tx, err := db.BeginTx(ctx, pgx.TxOptions{})
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
	if mode == pgx.QueryExecModeCacheStatement || mode == pgx.QueryExecModeDescribeExec {
		var pid uint32
		if err := tx.QueryRow(ctx, "select pg_catalog.pg_backend_pid()", pgx.QueryExecModeSimpleProtocol).Scan(&pid); err != nil {
			return wrap("ask for the session's process id", err)
		}
		if pid != conn.PgConn().PID() {
			return fmt.Errorf("%w: the query mode is %q", ErrPooler, mode)
		}
	}
	readOnly, err := queryOne[string](ctx, tx, "select pg_catalog.current_setting('transaction_read_only')")
	if err != nil {
		return wrap("ask whether the session is read only", err)
	}
	if readOnly == "on" {
		return ErrReadOnly
	}
	return nil
}
