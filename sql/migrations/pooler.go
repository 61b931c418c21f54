package migrations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrPooler: a pooler that gives each transaction another session stands before the
// server. The settings and session locks of a migrator would be left on sessions that
// other clients get next, and would not be on its own. Nothing was changed.
var ErrPooler = errors.New("the connection goes through a pooler in transaction mode, which cannot hold a migrator's locks: " +
	"connect to PostgreSQL itself, or by a pooler in session mode")

const (
	poolerRounds  = 20              // a busy pooler may give the same sessions a few times
	poolerTimeout = 5 * time.Second // for a second session
)

// checkPooler refuses a connection that is not one session, before anything is set or
// locked on it; what it asks leaves nothing behind.
//
// That something stands between shows in the process id: it tells one of its own. A
// pooler in session mode, or a proxy, is welcome, and is told apart by a second connection:
// where each client has a session, the first one's stays the same and the second never gets
// it. Poolers in transaction mode give out the session that came back last, or the next in
// turn: the second client gets the first one's, or the first one another when it asks
// twice in a row.
func (s *session) checkPooler() error {
	pid, err := backend(s.ctx, s.conn)
	if err != nil {
		return fmt.Errorf("ask for the session's process id: %w", err)
	}
	if pid == s.conn.PgConn().PID() {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, poolerTimeout)
	defer cancel()
	second, err := pgx.ConnectConfig(ctx, s.conn.Config())
	if err != nil {
		return unknownPooler(s.ctx, err)
	}
	defer func() { _ = second.Close(s.tail) }()
	for range poolerRounds {
		for _, conn := range []*pgx.Conn{s.conn, s.conn, second} {
			now, err := backend(ctx, conn)
			if err != nil {
				return unknownPooler(s.ctx, err)
			}
			if (conn == s.conn) != (now == pid) {
				return ErrPooler
			}
		}
	}
	return nil
}

// unknownPooler is where a second session cannot be had to find out.
func unknownPooler(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("look for a pooler: %w", context.Cause(ctx))
	}
	why := "no second session came about"
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		why = pg.Message
	}
	return fmt.Errorf("%w (or free a session: which mode it is in could not be found out, %s)", ErrPooler, why)
}

// backend is the process id of the session behind a connection. The query changes nothing
// and calls nothing by search_path.
func backend(ctx context.Context, conn *pgx.Conn) (pid uint32, err error) {
	err = conn.QueryRow(ctx, `select pg_catalog.pg_backend_pid()`).Scan(&pid)
	return pid, err
}
