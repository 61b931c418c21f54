package migrations

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	migratedb "github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/fairclaim/fairclaim/internal/connstring"
)

const (
	schemaName   = "outbox"
	versionTable = "schema_migrations"
	ledgerTable  = "migration"

	// lockKey is "fairclai" in ASCII: the advisory lock of these migrations.
	lockKey = 0x6661_6972_636c_6169
	// lockPoll is how often a lock that is taken is asked for again. A waiting
	// pg_advisory_lock would hold a snapshot, and with it every vacuum back.
	lockPoll = 100 * time.Millisecond
	// grace is how long book-keeping may go on after the caller's context ended.
	grace = 10 * time.Second
)

// session is the one connection on which everything happens: the locks, the
// checks, the repair and the migrations. So the locks live exactly as long as the
// server works on a migration, also when the process dies in the middle of it.
type session struct {
	conn *pgx.Conn
	sql  *stdlib.Conn // the same connection, for golang-migrate

	ctx  context.Context // the caller's
	tail context.Context // ends grace after ctx: for what must not stop half-way
	stop func()

	name        string // of the database
	lockTimeout time.Duration
}

func connect(ctx context.Context, dsn string) (*session, error) {
	cfg, err := connstring.Config(dsn)
	if err != nil {
		return nil, err
	}
	if cfg.RuntimeParams["application_name"] == "" {
		cfg.RuntimeParams["application_name"] = "fairclaim migrate"
	}
	// Nothing is prepared: a migration may change what a statement looks at.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	// The server gets the chance to roll back before the connection is cut.
	cfg.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: grace}
	}
	conn, err := stdlib.GetConnector(*cfg).Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}

	tail, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stopWatching := context.AfterFunc(ctx, func() { time.AfterFunc(grace, cancel) })
	pgxConn := conn.(*stdlib.Conn)
	return &session{
		conn: pgxConn.Conn(),
		sql:  pgxConn,
		ctx:  ctx,
		tail: tail,
		stop: func() { stopWatching(); cancel() },
	}, nil
}

func (s *session) close() {
	defer s.stop()
	_ = s.conn.Close(s.tail) // the server rolls back and unlocks whatever this returns
}

// prepare checks the server and makes the session's settings those that the
// migrations were written for, whatever the role's or the database's are.
func (s *session) prepare(lockTimeout time.Duration) error {
	var version int
	var encoding string
	var standby bool
	err := s.conn.QueryRow(s.ctx, `
		select pg_catalog.current_setting('server_version_num')::int,
		       pg_catalog.current_setting('server_encoding'),
		       pg_catalog.pg_is_in_recovery(),
		       pg_catalog.current_database()`).Scan(&version, &encoding, &standby, &s.name)
	if err != nil {
		return fmt.Errorf("check the server: %w", err)
	}
	switch {
	case version < 150000:
		return fmt.Errorf("%w: PostgreSQL 15 or newer is needed, this is %d", ErrUnsupportedServer, version/10000)
	case encoding != "UTF8":
		return fmt.Errorf("%w: the database must be in UTF8, this one is in %s", ErrUnsupportedServer, encoding)
	case standby:
		return fmt.Errorf("%w: it is a standby, which takes no changes", ErrUnsupportedServer)
	}

	s.lockTimeout = lockTimeout
	if _, err := s.conn.Exec(s.ctx, `set search_path = pg_catalog, pg_temp`); err != nil { // decides what = is, below
		return fmt.Errorf("set up the session: %w", err)
	}
	_, err = s.conn.Exec(s.ctx, `
		select pg_catalog.set_config(name, value, false)
		from (values ('client_encoding', 'UTF8'),
		             ('client_min_messages', 'warning'),
		             ('standard_conforming_strings', 'on'),
		             ('check_function_bodies', 'on'),
		             ('default_transaction_isolation', 'read committed'),
		             ('lock_timeout', $1)) as wanted (name, value)
		union all
		select pg_catalog.set_config(name, '0', false) from pg_catalog.pg_settings
		where name in ('statement_timeout', 'transaction_timeout',
		               'idle_in_transaction_session_timeout', 'idle_session_timeout')`,
		strconv.FormatInt(lockTimeout.Milliseconds(), 10))
	if err != nil {
		return fmt.Errorf("set up the session: %w", err)
	}
	return nil
}

// lock takes, in this order, the lock of these migrations and those that
// golang-migrate takes for the version table: its command line puts a slash
// before the database's name, a program that uses the library mostly does not.
// All last until the session ends.
func (s *session) lock(wait time.Duration) error {
	keys := []int64{lockKey}
	for _, name := range []string{"/" + s.name, s.name} {
		id, err := migratedb.GenerateAdvisoryLockId(name, schemaName, versionTable)
		if err != nil {
			return fmt.Errorf("name golang-migrate's lock: %w", err)
		}
		key, err := strconv.ParseInt(id, 10, 64)
		if err != nil {
			return fmt.Errorf("name golang-migrate's lock: %w", err)
		}
		keys = append(keys, key)
	}

	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	poll := time.NewTicker(lockPoll)
	defer poll.Stop()
	for len(keys) > 0 {
		var got bool
		if err := s.conn.QueryRow(s.ctx, `select pg_catalog.pg_try_advisory_lock($1)`, keys[0]).Scan(&got); err != nil {
			return fmt.Errorf("lock out other migrators: %w", err)
		}
		if got {
			keys = keys[1:]
			continue
		}
		select {
		case <-s.ctx.Done():
			return fmt.Errorf("wait for another migrator: %w", context.Cause(s.ctx))
		case <-deadline.C:
			return fmt.Errorf("%w: waited %v for %s", ErrBusy, wait, s.holders(`
				l.locktype = 'advisory' and l.objsubid = 1
				and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = pg_catalog.current_database())
				and (l.classid::bigint << 32 | l.objid::bigint) = $1`, keys[0]))
		case <-poll.C:
		}
	}
	return nil
}

// readable makes an error for people of one that golang-migrate returned: it says
// where and what, that the context ended, or who was in the way.
func (s *session) readable(err error) error {
	err = statementError(err)
	switch {
	case s.ctx.Err() != nil:
		return fmt.Errorf("%w (%w)", context.Cause(s.ctx), err)
	case hasState(err, lockNotAvailable):
		return fmt.Errorf("%w: after %v; locks in the schema are held by %s; try again when they are gone (%w)",
			ErrLockTimeout, s.lockTimeout, s.holders(`
			l.relation in (select c.oid from pg_catalog.pg_class as c where c.relnamespace =
				(select n.oid from pg_catalog.pg_namespace as n where n.nspname = $1))
			and l.database = (select d.oid from pg_catalog.pg_database as d where d.datname = pg_catalog.current_database())`, schemaName), err)
	}
	return err
}

// holders describes the sessions that hold a lock, those first that have held
// theirs for longest. It is for error texts and does not fail.
func (s *session) holders(where string, args ...any) string {
	rows, err := s.conn.Query(s.tail, `
		select pg_catalog.format('pid %s (%s)', l.pid, pg_catalog.concat_ws(', ',
		         'application_name ' || pg_catalog.quote_literal(nullif(a.application_name, '')),
		         'role ' || pg_catalog.quote_ident(a.usename),
		         a.state || ' since ' || pg_catalog.to_char(a.state_change, 'YYYY-MM-DD HH24:MI:SSOF')))
		from pg_catalog.pg_locks as l left join pg_catalog.pg_stat_activity as a on a.pid = l.pid
		where l.granted and l.pid <> pg_catalog.pg_backend_pid() and `+where+`
		group by l.pid, a.application_name, a.usename, a.state, a.state_change, a.xact_start
		order by a.xact_start nulls last, l.pid limit 4`, args...)
	if err != nil {
		return "a session that cannot be named (" + err.Error() + ")"
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	switch {
	case err != nil:
		return "a session that cannot be named (" + err.Error() + ")"
	case len(found) == 0:
		return "a session that is gone by now"
	case len(found) > 3:
		found[3] = "others"
	}
	return strings.Join(found, ", ")
}

// boundConn gives the caller's context to golang-migrate's driver, which calls
// everything with none. Statements inside of a transaction, which are the few
// that write the version table, get the longer one: cut in the middle, they would
// leave it dirty.
type boundConn struct {
	*stdlib.Conn
	ctx, tail context.Context
}

func (c boundConn) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	ctx := c.ctx
	if c.Conn.Conn().PgConn().TxStatus() != 'I' {
		ctx = c.tail
	}
	if ctx.Err() != nil { // pgx would call this a bad connection, and database/sql would close it
		return nil, context.Cause(ctx)
	}
	return c.Conn.ExecContext(ctx, query, args)
}

func (c boundConn) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	return c.Conn.QueryContext(c.tail, query, args)
}

// lockedDriver is golang-migrate's driver without its own lock, which the session
// has and keeps.
type lockedDriver struct{ migratedb.Driver }

func (lockedDriver) Lock() error   { return nil }
func (lockedDriver) Unlock() error { return nil }

var errSessionLost = errors.New("the session was lost")

// oneConn is a connector that hands out one connection and never another, which
// would be without the locks.
type oneConn struct {
	conn boundConn
	used atomic.Bool
}

func (c *oneConn) Connect(context.Context) (driver.Conn, error) {
	if c.used.Swap(true) {
		return nil, errSessionLost
	}
	return c.conn, nil
}

func (c *oneConn) Driver() driver.Driver { return stdlib.GetDefaultDriver() }

func (s *session) database() *sql.DB {
	db := sql.OpenDB(&oneConn{conn: boundConn{Conn: s.sql, ctx: s.ctx, tail: s.tail}})
	db.SetMaxOpenConns(1)
	return db
}
