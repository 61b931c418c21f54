package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Setup prepares the template database. dsn is the owner's, who is no
// superuser; no session may be left open.
type Setup func(ctx context.Context, dsn string) error

// Cluster is a server with a template database that every [DB] is a clone of.
// The zero value is ready for Main. Its methods may be called concurrently.
type Cluster struct {
	server   *Server
	template string

	mu     sync.Mutex // held while the template is copied: one copy at a time
	clones int
}

// Main starts the server of a test binary, prepares its template, runs the
// tests and stops the server. It returns the code to exit with. A nil setup
// leaves the template empty.
func (c *Cluster) Main(m *testing.M, setup Setup) int {
	ctx, cancel := context.WithTimeout(context.Background(), Scaled(startTimeout))
	defer cancel()
	if err := c.open(ctx, Options{}, setup); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return 1
	}
	code := m.Run()

	ctx, cancel = context.WithTimeout(context.Background(), Scaled(stopTimeout))
	defer cancel()
	if err := c.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest:", err)
		return max(code, 1)
	}
	return code
}

// Open starts a server and prepares its template: a cluster of a test's own,
// for one that kills it or wants other settings.
func Open(ctx context.Context, opts Options, setup Setup) (*Cluster, error) {
	c := new(Cluster)
	if err := c.open(ctx, opts, setup); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Cluster) open(ctx context.Context, opts Options, setup Setup) error {
	server, err := Start(ctx, opts)
	if err != nil {
		return err
	}
	c.server = server
	c.template = "fairclaim_" + server.run
	if err := c.prepare(ctx, setup); err != nil {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), Scaled(stopTimeout))
		defer cancel()
		return errors.Join(err, c.Close(stop))
	}
	return nil
}

// prepare makes the template and closes it to sessions: one would stop the copying.
func (c *Cluster) prepare(ctx context.Context, setup Setup) error {
	db, err := c.server.CreateDatabase(ctx, c.template, "")
	if err != nil {
		return err
	}
	if setup != nil {
		if err := setup(ctx, db.DSN); err != nil {
			return fmt.Errorf("set up the template database: %w", err)
		}
	}
	if err := c.server.admin(ctx, fmt.Sprintf("alter database %s allow_connections false", ident(db.Name))); err != nil {
		return fmt.Errorf("close the template database: %w", err)
	}
	return nil
}

// Close drops the template and stops the server.
func (c *Cluster) Close(ctx context.Context) error {
	var err error
	if c.server.kind == KindDSN {
		err = c.server.DropDatabase(ctx, c.template)
	}
	return errors.Join(err, c.server.Stop(ctx))
}

// Server is the server that all tests of the binary share. Whoever wants to
// kill it takes one of their own from [Open].
func (c *Cluster) Server() *Server { return c.server }

// Clones is how many test databases have been made.
func (c *Cluster) Clones() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.clones
}

// New clones the template for one test. At cleanup the clone is dropped, with
// the sessions on it; a connection of the pool that was never released fails the test.
func (c *Cluster) New(t testing.TB) *DB {
	t.Helper()
	database, err := c.clone(t.Context())
	if err != nil {
		t.Fatalf("pgtest: %v", err)
	}
	db := &DB{Database: database, server: c.server}
	t.Cleanup(func() { db.drop(t) })

	config, err := pgxpool.ParseConfig(db.DSN)
	if err != nil {
		t.Fatalf("pgtest: parse the connection string of %s: %v", db.Name, err)
	}
	config.MaxConns = poolSize
	if db.Pool, err = pgxpool.NewWithConfig(t.Context(), config); err != nil {
		t.Fatalf("pgtest: open a pool on %s: %v", db.Name, err)
	}
	return db
}

func (c *Cluster) clone(ctx context.Context) (Database, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clones++
	return c.server.CreateDatabase(ctx, fmt.Sprintf("%s_%d", c.template, c.clones), c.template)
}
