package migrations

import (
	"errors"
	"fmt"

	"github.com/golang-migrate/migrate/v4/database"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	// ErrForeignSchema: there is a schema outbox, and it was not made by these
	// migrations. Nothing was changed.
	ErrForeignSchema = errors.New("the schema outbox is not fairclaim's")

	// ErrForeignOwner: the schema belongs to another role than the one that migrates.
	// Functions run with their owner's rights, so nobody may install into a schema that
	// somebody else can change. Nothing was changed.
	ErrForeignOwner = errors.New("the schema outbox belongs to another role")

	// ErrNewerSchema: the database holds migrations that this program does not
	// know. Nothing was changed.
	ErrNewerSchema = errors.New("the schema is newer than this program")

	// ErrInconsistent: the ledger and the version table contradict each other in
	// a way that no crash explains, so a person has to look. Nothing was changed.
	ErrInconsistent = errors.New("the schema's version is in doubt")

	// ErrUnsupportedServer: the server is too old, not in UTF-8, or a standby.
	ErrUnsupportedServer = errors.New("the server cannot hold the schema")

	// ErrBusy: another migrator held its lock for longer than Options.Wait.
	ErrBusy = errors.New("another migrator is at work")

	// ErrLockTimeout: a statement waited for longer than Options.LockTimeout for
	// other sessions. The migration was rolled back.
	ErrLockTimeout = errors.New("lock not granted in time")
)

// lockNotAvailable is the SQLSTATE of a wait that lock_timeout ended.
const lockNotAvailable = "55P03"

func hasState(err error, sqlstate string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == sqlstate
}

// statementError turns an error of golang-migrate, whose text quotes the whole
// file, into one that gives the line and what the server said of it.
func statementError(err error) error {
	original, line := err, uint(0)
	var byValue database.Error
	var byPointer *database.Error
	switch {
	case errors.As(err, &byValue):
		original, line = byValue.OrigErr, byValue.Line
	case errors.As(err, &byPointer):
		original = byPointer.OrigErr
	}
	var pg *pgconn.PgError
	if !errors.As(original, &pg) {
		return original
	}
	text := ""
	if pg.Detail != "" {
		text += "; " + pg.Detail
	}
	if pg.Hint != "" {
		text += "; " + pg.Hint
	}
	if line > 0 && pg.Position > 0 {
		return fmt.Errorf("line %d: %w%s", line, pg, text)
	}
	return fmt.Errorf("%w%s", pg, text)
}
