package driver

import (
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"
)

// Reasons for which the outbox refuses a call, for errors.Is. The error that wraps
// one holds the database's own error too, for errors.As.
var (
	// ErrBadArgument: an argument that no outbox could use (SQLSTATE OB001, or
	// found out before the database was asked).
	ErrBadArgument = errors.New("bad argument")

	// ErrKeyTaken: the dispatch key belongs to a message of another namespace
	// (SQLSTATE OB003, INV-3).
	ErrKeyTaken = errors.New("dispatch key belongs to another namespace")

	// ErrPayloadTooLarge: the payload has more bytes than the setting
	// max_payload_bytes (SQLSTATE OB004).
	ErrPayloadTooLarge = errors.New("payload too large")
)

// refusal is what a SQLSTATE that the outbox raises means here; nil for all others.
func refusal(sqlstate string) error {
	switch sqlstate {
	case "OB001":
		return ErrBadArgument
	case "OB003":
		return ErrKeyTaken
	case "OB004":
		return ErrPayloadTooLarge
	}
	return nil
}

// refusedError is a database error that has one of the reasons above: its text is
// the database's, without severity and code.
type refusedError struct {
	reason error
	err    error
}

func (e *refusedError) Error() string {
	var pg *pgconn.PgError
	if errors.As(e.err, &pg) {
		return pg.Message
	}
	return e.err.Error()
}

func (e *refusedError) Unwrap() []error { return []error{e.reason, e.err} }

// wrap says what failed, and makes the SQLSTATEs of the outbox known to errors.Is;
// nil stays nil. It goes by the method SQLState, which the errors of other drivers
// under database/sql have too.
func wrap(verb string, err error) error {
	if err == nil {
		return nil
	}
	var state interface{ SQLState() string }
	if errors.As(err, &state) {
		if reason := refusal(state.SQLState()); reason != nil {
			err = &refusedError{reason: reason, err: err}
		}
	}
	return fmt.Errorf("%s: %w", verb, err)
}

// TryAgain reports whether a call failed only because other transactions were in its way, so
// that the same call, made again, may work: a serialization failure (SQLSTATE 40001), a
// deadlock (40P01), a lock that was not granted within lock_timeout (55P03). A call in a transaction of
// the caller's can be made again only together with the whole transaction.
//
// A statement_timeout (57014) is not among them: the call has used the time that it may use,
// and would use it again. Neither is a broken connection: the call may have been committed.
func TryAgain(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && slices.Contains([]string{"40001", "40P01", "55P03"}, state.SQLState())
}
