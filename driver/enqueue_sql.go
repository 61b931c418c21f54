package driver

import (
	"context"
	"database/sql"
	"encoding/hex"
	"strings"
)

// SQLQuerier runs a query: a *sql.DB, *sql.Conn or *sql.Tx of any PostgreSQL driver.
type SQLQuerier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Arrays go as text: which other forms of them a driver takes differs.
const enqueueBatchSQLQuery = `
	select b.ord, b.id
	from outbox.enqueue_batch($1::pg_catalog.text::pg_catalog.text[], $2::pg_catalog.text::pg_catalog.text[],
	                          $3::pg_catalog.text::pg_catalog.text[], $4::pg_catalog.text::pg_catalog.bytea[],
	                          $5::pg_catalog.text::pg_catalog.text[], $6::pg_catalog.text::pg_catalog.jsonb[],
	                          $7::pg_catalog.text::interval[]) as b`

// EnqueueSQL is [Enqueue] for database/sql.
func EnqueueSQL(ctx context.Context, db SQLQuerier, m Message) (Enqueued, error) {
	query, args, err := enqueueArgs(filled(ctx, []Message{m})[0])
	if err != nil {
		return Enqueued{}, wrap("enqueue", err)
	}
	var id *int64
	err = queryRows(ctx, db, query, args, []any{&id}, func() {})
	if err != nil {
		return Enqueued{}, wrap("enqueue", err)
	}
	return enqueued(id), nil
}

// EnqueueBatchSQL is [EnqueueBatch] for database/sql. Payloads travel in hexadecimal,
// at twice their size.
func EnqueueBatchSQL(ctx context.Context, db SQLQuerier, ms []Message) ([]Enqueued, error) {
	return enqueueBatch(filled(ctx, ms), func(part []Message, found func(ord int32, id *int64)) error {
		args := batchArgs(part)
		for i, arg := range args {
			switch a := arg.(type) {
			case []string:
				if args[i] = nil; a != nil {
					args[i] = textArray(a)
				}
			case [][]byte:
				args[i] = byteaArray(a)
			}
		}
		var ord int32
		var id *int64
		return queryRows(ctx, db, enqueueBatchSQLQuery, args, []any{&ord, &id}, func() { found(ord, id) })
	})
}

func queryRows(ctx context.Context, db SQLQuerier, query string, args, into []any, each func()) error {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return err
		}
		each()
	}
	return rows.Err()
}

var arrayEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// textArray is the input form of an array: {"a","b \"quoted\""}.
func textArray(values []string) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, v := range values {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		arrayEscapes.WriteString(&b, v)
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

func byteaArray(values [][]byte) string {
	size := 2
	for _, v := range values {
		size += len(`"\\x",`) + hex.EncodedLen(len(v))
	}
	out := append(make([]byte, 0, size), '{')
	for i, v := range values {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, `"\\x`...)
		out = hex.AppendEncode(out, v)
		out = append(out, '"')
	}
	return string(append(out, '}'))
}
