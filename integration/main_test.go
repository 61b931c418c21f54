// Package integration holds the tests that need a real PostgreSQL.
package integration

import (
	"context"
	"os"
	"testing"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

var pg pgtest.Cluster

func TestMain(m *testing.M) {
	if code, ok := soakNode(); ok {
		os.Exit(code)
	}
	os.Exit(pg.Main(m, func(ctx context.Context, dsn string) error {
		_, err := migrations.Up(ctx, dsn, migrations.Options{})
		return err
	}))
}
