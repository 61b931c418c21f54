package pgtest

import (
	"context"
	"errors"
	"fmt"
)

// existing is a server that somebody else runs.
type existing struct{ adminDSN string }

func (e existing) dsn() string    { return e.adminDSN }
func (e existing) origin() string { return "at FAIRCLAIM_TEST_DSN" }

// failed is known at the first refusal: nobody here is about to start the server.
func (e existing) failed(ctx context.Context) error {
	if err := ping(ctx, e.adminDSN); err != nil {
		return fmt.Errorf("connect to FAIRCLAIM_TEST_DSN: %w", err)
	}
	return nil
}

func (e existing) kill(context.Context) error      { return errors.ErrUnsupported }
func (e existing) start(context.Context) error     { return errors.ErrUnsupported }
func (e existing) interrupt(context.Context) error { return errors.ErrUnsupported }
func (e existing) keep(context.Context) error      { return nil }
func (e existing) remove(context.Context) error    { return nil }
func (e existing) removeCommand() string           { return "" }
