package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/internal/connstring"
)

const (
	connectTimeout = 10 * time.Second // where the connection string names none
	cancelGrace    = 5 * time.Second  // how long the server has to answer a cancel request
	pingTimeout    = 3 * time.Second  // for an idle connection of the pool to answer; else it is replaced
	closeTimeout   = 3 * time.Second  // for a pool to close; a lost connection would take longer
)

// withConn connects, checks the schema, and runs do on the connection.
func (a *app) withConn(ctx context.Context, do func(conn *pgx.Conn) error) error {
	pool, err := a.poolConfig("")
	if err != nil {
		return err
	}
	config := pool.ConnConfig
	// When ctx ends, the server is asked to stop instead of being left working.
	config.BuildContextWatcherHandler = func(conn *pgconn.PgConn) ctxwatch.Handler {
		return &pgconn.CancelRequestContextWatcherHandler{Conn: conn, DeadlineDelay: cancelGrace}
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return connectError(ctx, config, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := a.checkSchema(ctx, conn); err != nil {
		return err
	}
	return do(conn)
}

// openPool opens a pool of at most size connections, and checks the schema. The
// application_name of the connections names the command and the node.
func (a *app) openPool(ctx context.Context, node string, size int32) (*pgxpool.Pool, error) {
	config, err := a.poolConfig(node)
	if err != nil {
		return nil, err
	}
	config.MaxConns = size
	config.PingTimeout = pingTimeout
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open the pool: %w", err)
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		pool.Close()
		return nil, connectError(ctx, config.ConnConfig, err)
	}
	err = a.checkSchema(ctx, conn.Conn())
	conn.Release()
	if err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

func (a *app) poolConfig(node string) (*pgxpool.Config, error) {
	text, err := connstring.Clean(a.databaseURL)
	if err != nil {
		return nil, dsnError(err)
	}
	config, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, dsnError(connstring.Explain(text, err))
	}
	if err := connstring.Apply(config.ConnConfig); err != nil {
		return nil, dsnError(err)
	}
	// Passwords and certificates change while a node runs: each new connection reads their
	// files again.
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		if fresh, err := connstring.Config(text); err == nil { // else the old ones may still be good
			c.Password, c.TLSConfig, c.Fallbacks = fresh.Password, fresh.TLSConfig, fresh.Fallbacks
		}
		return nil
	}
	// No prepared statement outlives a call: a pooler in transaction mode would lose it.
	// Settings of the role must not change what is read or written: see pins, and
	// driver/session.go.
	switch config.ConnConfig.DefaultQueryExecMode {
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeDescribeExec:
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	params := config.ConnConfig.RuntimeParams
	params["client_encoding"] = "UTF8"
	if config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeSimpleProtocol {
		params["standard_conforming_strings"] = "on" // without it pgx quotes nothing; poolers know both settings
	}
	if params["application_name"] == "" {
		params["application_name"] = strings.TrimSpace("sweep " + a.command + " " + node)
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	return config, nil
}

// closePool closes a pool, but waits for lost connections no longer than closeTimeout.
func closePool(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout):
	}
}

// dsnError makes a usageError of an error about the connection string.
func dsnError(err error) error {
	var refused *connstring.Error
	if errors.As(err, &refused) {
		return &usageError{err: err, hint: refused.Hint + " --database-url, SWEEP_DATABASE_URL, DATABASE_URL and the PG variables say where the database is."}
	}
	return &usageError{err: err}
}

// connectError says in one line to which address sweep tried to connect, as which user,
// and why that failed.
func connectError(ctx context.Context, config *pgx.ConnConfig, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("connect: %w", context.Cause(ctx))
	}
	cause, hint := connectCause(err)
	cause = connstring.Hide(cause, config.RuntimeParams)
	if errors.Is(err, context.DeadlineExceeded) {
		cause = fmt.Sprintf("no answer in %v", config.ConnectTimeout)
	}
	return withHint(fmt.Errorf("cannot connect to database %q at %s as user %q: %s",
		cmp.Or(config.Database, config.User), addresses(config), config.User, cause), "%s", hint)
}

func addresses(config *pgx.ConnConfig) string {
	var all []string
	add := func(host string, port uint16) {
		at := net.JoinHostPort(host, strconv.Itoa(int(port)))
		if strings.HasPrefix(host, "/") { // the folder of a Unix socket
			at = fmt.Sprintf("%s port %d", host, port)
		}
		if len(all) == 0 || all[len(all)-1] != at { // pgx tries each address with and without TLS
			all = append(all, at)
		}
	}
	add(config.Host, config.Port)
	for _, f := range config.Fallbacks {
		add(f.Host, f.Port)
	}
	return strings.Join(all, ", ")
}

func connectCause(err error) (cause, hint string) {
	const where = "Is PostgreSQL running there? --database-url, DATABASE_URL or the PG variables say where to look."
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "28P01", "28000":
			hint = "Check the user, the password (PGPASSWORD or ~/.pgpass keep it off the command line) and pg_hba.conf."
		case "3D000":
			hint = "Create the database first, or name another one."
		case "42704", "22023", "08P01":
			hint = "Is a parameter in the connection settings misspelt, or refused by a pooler?"
		case "53300":
			hint = "Raise max_connections, or put a pooler in front."
		case "57P03":
			hint = "Try again in a moment."
		}
		return pg.Message, hint
	}
	var dns *net.DNSError
	var op *net.OpError
	switch {
	case errors.As(err, &dns):
		return fmt.Sprintf("host %q: %s", dns.Name, dns.Err), where
	case errors.As(err, &op):
		return op.Err.Error(), where
	}
	if strings.Contains(err.Error(), "server refused TLS connection") { // pgx has no name for it
		hint = "The server does not offer TLS, and sslmode wants it: set ssl = on there, or, on a network that you trust, sslmode=disable or prefer here."
	}
	for { // the innermost error is the shortest
		inner := errors.Unwrap(err)
		if inner == nil {
			return err.Error(), cmp.Or(hint, where)
		}
		err = inner
	}
}
