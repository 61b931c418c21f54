package pgtest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// poolSize is the number of connections that a [DB]'s pool may hold: enough for
// any interleaving that a test writes down.
const poolSize = 16

// releaseTimeout is how long a cleanup waits for connections that are still in use.
const releaseTimeout = 30 * time.Second

// DB is one test's database. Its methods may be called concurrently.
type DB struct {
	Database

	// Pool connects as the owner.
	Pool *pgxpool.Pool

	server *Server
	mu     sync.Mutex
	roles  []string
}

// Role is a login role made for one test.
type Role struct {
	Name string
	DSN  string // connects to the test's database as the role; holds its password
}

// ConnOption changes how [DB.Connect] connects.
type ConnOption func(*pgx.ConnConfig)

// As connects as r instead of the owner.
func As(r Role) ConnOption {
	return func(c *pgx.ConnConfig) {
		as, err := pgx.ParseConfig(r.DSN)
		if err != nil {
			panic(fmt.Sprintf("pgtest: the connection string of role %s does not parse", r.Name))
		}
		c.User, c.Password = as.User, as.Password
	}
}

// Param sets a run-time parameter for the session, such as TimeZone.
func Param(name, value string) ConnOption {
	return func(c *pgx.ConnConfig) { c.RuntimeParams[name] = value }
}

// Connect opens a connection as the owner, or as the options say, that is
// closed at cleanup.
func (db *DB) Connect(t testing.TB, opts ...ConnOption) *pgx.Conn {
	t.Helper()
	return connect(t, db.DSN, opts...)
}

// Admin opens a connection as the administrator that is closed at cleanup.
func (db *DB) Admin(t testing.TB, opts ...ConnOption) *pgx.Conn {
	t.Helper()
	return connect(t, db.AdminDSN, opts...)
}

func connect(t testing.TB, dsn string, opts ...ConnOption) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatalf("pgtest: parse the connection string: %v", err)
	}
	for _, opt := range opts {
		opt(config)
	}
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatalf("pgtest: connect: %v", err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

// Role makes a login role whose name is unique in the server, for this test
// alone. Each setting is the end of an `alter role` statement, such as
// "set default_transaction_isolation = 'serializable'". The role is dropped
// after the database, so nothing in it needs to be revoked first.
func (db *DB) Role(t testing.TB, settings ...string) Role {
	t.Helper()
	db.mu.Lock()
	defer db.mu.Unlock()
	name := fmt.Sprintf("%s_role%d", db.Name, len(db.roles)+1)
	db.roles = append(db.roles, name)

	conn, err := pgx.Connect(t.Context(), db.AdminDSN)
	if err != nil {
		t.Fatalf("pgtest: connect: %v", err)
	}
	defer conn.Close(context.WithoutCancel(t.Context()))
	made, err := db.server.createRole(t.Context(), conn, name, settings...)
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	return Role{Name: name, DSN: rewrite(db.DSN, db.Name, made)}
}

// drop removes the database and then its roles.
func (db *DB) drop(t testing.TB) {
	ctx, cancel := context.WithTimeout(context.Background(), Scaled(stopTimeout))
	defer cancel()
	db.closePool(t)
	if err := db.server.DropDatabase(ctx, db.Name); err != nil {
		t.Errorf("pgtest: %v", err)
		return
	}
	for _, name := range db.roles {
		if err := db.server.dropRole(ctx, name); err != nil {
			t.Errorf("pgtest: %v", err)
		}
	}
}

// closePool closes the pool, but does not wait for ever for a connection that
// the test has not released.
func (db *DB) closePool(t testing.TB) {
	if db.Pool == nil {
		return
	}
	closed := make(chan struct{})
	go func() { db.Pool.Close(); close(closed) }()
	select {
	case <-closed:
	case <-time.After(Scaled(releaseTimeout)):
		t.Errorf("pgtest: %d connections of the pool were never released", db.Pool.Stat().AcquiredConns())
	}
}
