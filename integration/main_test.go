package integration

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

var pg pgtest.Cluster

func TestMain(m *testing.M) {
	if code, ok := soakNode(); ok {
		os.Exit(code)
	}
	go tellProgress(time.Now())
	os.Exit(pg.Main(m, func(ctx context.Context, dsn string) error {
		_, err := migrations.Up(ctx, dsn, migrations.Options{})
		return err
	}))
}

// tellProgress says now and then that the tests still run: they take long, and go test says
// nothing of those that pass.
func tellProgress(since time.Time) {
	for range time.Tick(10 * time.Second) {
		fmt.Fprintf(os.Stderr, "testing for %v, on %d databases so far\n", time.Since(since).Round(time.Second), pg.Clones())
	}
}
