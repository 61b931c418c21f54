package driver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

const (
	maxNameBytes        = 512 // namespace, task queue, dispatch key
	maxContentTypeBytes = 256

	// One call of outbox.enqueue_batch holds at most so many messages, and so many
	// bytes of payload unless a single one has more.
	maxStatementRows  = 5000
	maxStatementBytes = 8 << 20

	// Most messages have neither headers nor a delay: those are left to the function's defaults, which spares
	// the server reading them.
	enqueuePlainQuery = `
		select outbox.enqueue($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.bytea,
		                      $5::pg_catalog.text)`
	enqueueQuery = `
		select outbox.enqueue($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.bytea,
		                      $5::pg_catalog.text, $6::pg_catalog.text::pg_catalog.jsonb, $7::pg_catalog.text::interval)`
	enqueueBatchQuery = `
		select b.ord, b.id
		from outbox.enqueue_batch($1::pg_catalog.text[], $2::pg_catalog.text[], $3::pg_catalog.text[],
		                          $4::pg_catalog.bytea[], $5::pg_catalog.text[],
		                          $6::pg_catalog.text[]::pg_catalog.jsonb[], $7::pg_catalog.text[]::interval[]) as b`
)

// Enqueued is what became of one message.
type Enqueued struct {
	ID        int64 // 0 for a duplicate
	Duplicate bool  // the namespace had a message with this key; the new one was not written (INV-3)
}

// Enqueue writes m in the transaction of db. With a pgx.Tx the message exists if and
// when that commits; with a pool or a connection that is in no transaction, at once.
//
// A duplicate is no error, so a call that may or may not have come through can be
// made again. Errors match [ErrBadArgument], [ErrKeyTaken] or [ErrPayloadTooLarge]
// where one of them is the reason; any error of the database leaves its transaction
// aborted, as usual.
func Enqueue(ctx context.Context, db Querier, m Message) (Enqueued, error) {
	query, args, err := enqueueArgs(filled(ctx, []Message{m})[0])
	if err == nil {
		err = checkEncoding(db)
	}
	if err != nil {
		return Enqueued{}, wrap("enqueue", err)
	}
	rows, err := db.Query(ctx, query, args...)
	if err != nil {
		return Enqueued{}, wrap("enqueue", err)
	}
	id, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[*int64])
	if err != nil {
		return Enqueued{}, wrap("enqueue", err)
	}
	return enqueued(id), nil
}

// EnqueueBatch is [Enqueue] for many messages, in a fraction of the round trips and
// of the time. The result has an entry for each, in the same order; a key that comes
// twice in ms is a duplicate from the second time on.
//
// Many messages or large payloads take several statements. In a transaction that
// makes no difference: all are written or, after an error, none. Outside of one, a
// call that ends with an error may have written some; made again, it writes the
// rest and reports those as duplicates. Messages are written in the order of their
// keys, so that calls with the same keys do not deadlock.
//
// Errors are those of Enqueue. Where the database refuses messages, its text gives
// their positions within the statement, from 1. With several statements, the error
// says which.
func EnqueueBatch(ctx context.Context, db Querier, ms []Message) ([]Enqueued, error) {
	return enqueueBatch(filled(ctx, ms), func(part []Message, found func(ord int32, id *int64)) error {
		if err := checkEncoding(db); err != nil {
			return err
		}
		rows, err := db.Query(ctx, enqueueBatchQuery, batchArgs(part)...)
		if err != nil {
			return err
		}
		var ord int32
		var id *int64
		_, err = pgx.ForEachRow(rows, []any{&ord, &id}, func() error {
			found(ord, id)
			return nil
		})
		return err
	})
}

// Validate reports whether every outbox could take m, apart from the size of its
// payload, for which each has its own limit. Enqueue calls it; callers can use it to check
// beforehand. The error matches [ErrBadArgument] and names the field.
func (m Message) Validate() error {
	for _, f := range []struct {
		name, value string
		min, max    int
	}{
		{"namespace", m.Namespace, 1, maxNameBytes},
		{"task_queue", m.TaskQueue, 1, maxNameBytes},
		{"dispatch_key", m.DispatchKey, 1, maxNameBytes},
		{"content_type", m.ContentType, 0, maxContentTypeBytes},
	} {
		if len(f.value) < f.min || len(f.value) > f.max {
			return fmt.Errorf("%w: %s has %d bytes, not %d to %d", ErrBadArgument, f.name, len(f.value), max(f.min, 1), f.max)
		}
		if err := validText(f.value); err != nil {
			return fmt.Errorf("%w: %s %w", ErrBadArgument, f.name, err)
		}
	}
	for name, value := range m.Headers {
		if err := cmp.Or(validText(name), validText(value)); err != nil {
			return fmt.Errorf("%w: header %q %w", ErrBadArgument, name, err)
		}
	}
	return nil
}

// validText refuses what PostgreSQL's text cannot hold.
func validText(s string) error {
	if strings.ContainsRune(s, 0) {
		return errors.New("has a NUL byte")
	}
	if !utf8.ValidString(s) {
		return errors.New("is not valid UTF-8")
	}
	return nil
}

func enqueued(id *int64) Enqueued {
	if id == nil {
		return Enqueued{Duplicate: true}
	}
	return Enqueued{ID: *id}
}

func enqueueArgs(m Message) (query string, args []any, err error) {
	if err := m.Validate(); err != nil {
		return "", nil, err
	}
	args = []any{m.Namespace, m.TaskQueue, m.DispatchKey, payload(m), contentType(m)}
	if len(m.Headers) == 0 && m.Delay <= 0 {
		return enqueuePlainQuery, args, nil
	}
	return enqueueQuery, append(args, headers(m), interval(max(m.Delay, 0))), nil
}

// batchArgs are the arrays for a statement. Where all messages have the default of a field, its array is nil, which
// stands for that.
func batchArgs(ms []Message) []any {
	namespaces, queues, keys := make([]string, len(ms)), make([]string, len(ms)), make([]string, len(ms))
	payloads := make([][]byte, len(ms))
	for i, m := range ms {
		namespaces[i], queues[i], keys[i], payloads[i] = m.Namespace, m.TaskQueue, m.DispatchKey, payload(m)
	}
	return []any{
		namespaces, queues, keys, payloads,
		unlessAll(ms, func(m Message) bool { return m.ContentType == "" }, contentType),
		unlessAll(ms, func(m Message) bool { return len(m.Headers) == 0 }, headers),
		unlessAll(ms, func(m Message) bool { return m.Delay <= 0 }, func(m Message) string { return interval(max(m.Delay, 0)) }),
	}
}

// unlessAll are the values of a field, or nil where every message has the field's default.
func unlessAll(ms []Message, isDefault func(Message) bool, value func(Message) string) []string {
	if !slices.ContainsFunc(ms, func(m Message) bool { return !isDefault(m) }) {
		return nil
	}
	values := make([]string, len(ms))
	for i, m := range ms {
		values[i] = value(m)
	}
	return values
}

// enqueueBatch cuts ms into statements and puts their answers back in place. send
// runs one statement, and calls found with each row of its answer.
func enqueueBatch(ms []Message, send func(part []Message, found func(ord int32, id *int64)) error) ([]Enqueued, error) {
	for i, m := range ms {
		if err := m.Validate(); err != nil {
			return nil, fmt.Errorf("enqueue batch: message %d: %w", i, err)
		}
	}
	result := make([]Enqueued, len(ms))
	parts := cut(ms)
	for _, part := range parts {
		statement := make([]Message, len(part))
		for i, at := range part {
			statement[i] = ms[at]
		}
		answers := 0
		err := send(statement, func(ord int32, id *int64) {
			if ord >= 1 && int(ord) <= len(part) {
				result[part[ord-1]] = enqueued(id)
				answers++
			}
		})
		if err == nil && answers != len(part) {
			err = fmt.Errorf("%d messages, but %d answers", len(part), answers)
		}
		if err != nil {
			verb := "enqueue batch"
			if len(parts) > 1 {
				verb += ": " + keyRange(statement)
			}
			return nil, wrap(verb, err)
		}
	}
	return result, nil
}

// keyRange names the messages of one statement among others: their keys lie between
// those of all others.
func keyRange(ms []Message) string {
	keys := make([]string, len(ms))
	for i, m := range ms {
		keys[i] = m.DispatchKey
	}
	return fmt.Sprintf("keys %q to %q", slices.Min(keys), slices.Max(keys))
}

// cut deals the places of ms out to statements, those with smaller keys first.
// Inside of a statement they keep the order of ms, so that of two messages with
// one key the first is written.
func cut(ms []Message) [][]int {
	places := make([]int, len(ms))
	for i := range places {
		places[i] = i
	}
	bytes := 0
	for _, m := range ms {
		bytes += len(m.Payload)
	}
	if len(ms) == 0 {
		return nil
	}
	if len(ms) <= maxStatementRows && bytes <= maxStatementBytes {
		return [][]int{places}
	}

	slices.SortStableFunc(places, func(a, b int) int { return strings.Compare(ms[a].DispatchKey, ms[b].DispatchKey) })
	var parts [][]int
	start, size := 0, 0
	for i, at := range places {
		n := len(ms[at].Payload)
		if i > start && (i-start == maxStatementRows || size+n > maxStatementBytes) {
			parts = append(parts, places[start:i])
			start, size = i, 0
		}
		size += n
	}
	parts = append(parts, places[start:])
	for _, part := range parts {
		slices.Sort(part)
	}
	return parts
}

// payload is never nil, which drivers send as null.
func payload(m Message) []byte {
	if m.Payload == nil {
		return []byte{}
	}
	return m.Payload
}

func contentType(m Message) string { return cmp.Or(m.ContentType, "application/json") }

func headers(m Message) string {
	if len(m.Headers) == 0 {
		return "{}"
	}
	text, err := json.Marshal(m.Headers)
	if err != nil { // cannot be: keys and values are strings
		panic(err)
	}
	return string(text)
}
