package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/sql/migrations"
)

// checkSchema refuses a database without the schema, or with an older one than this
// program is made for. A newer one it only warns of: that is how a rolling upgrade
// looks from here. A role that may not read the ledger is not told.
func (a *app) checkSchema(ctx context.Context, conn *pgx.Conn) error {
	return inReadTx(ctx, conn, func(tx pgx.Tx) error { return a.checkSchemaIn(ctx, tx) })
}

func (a *app) checkSchemaIn(ctx context.Context, tx pgx.Tx) error {
	var installed, readable bool
	err := tx.QueryRow(ctx, `
		select c.oid is not null,
		       coalesce(has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select'), false)
		from (values ('outbox'::name)) as x(name)
		left join pg_catalog.pg_namespace as n on n.nspname = x.name
		left join pg_catalog.pg_class as c on c.relnamespace = n.oid and c.relname = 'migration'`).Scan(&installed, &readable)
	if err != nil {
		return fmt.Errorf("look for the schema: %w", err)
	}
	if !installed {
		return withHint(fmt.Errorf("database %q has no outbox", tx.Conn().Config().Database), `Run "sweep migrate up" first.`)
	}
	if !readable {
		return nil
	}
	var version uint
	if err := tx.QueryRow(ctx, `select coalesce(max(m.version), 0) from outbox.migration as m`).Scan(&version); err != nil {
		return fmt.Errorf("read the schema's version: %w", err)
	}
	all, err := migrations.List()
	if err != nil {
		return err
	}
	switch latest := all[len(all)-1].Version; {
	case version < latest:
		return withHint(fmt.Errorf("the schema is at version %d, this sweep needs %d", version, latest), `Run "sweep migrate up" first.`)
	case version > latest:
		a.log.Warn("the schema is newer than this sweep: use a newer sweep soon", "schema", version, "known", latest)
	}
	return nil
}

// explainError puts what a person can do beside an error of the database. It goes by the
// SQLSTATE: the message is in the server's language.
func (a *app) explainError(err error) error {
	var pg *pgconn.PgError
	var hinted *hintError
	var wrong *usageError
	if !errors.As(err, &pg) || errors.As(err, &hinted) || errors.As(err, &wrong) {
		return err
	}
	switch pg.Code {
	case "42501": // insufficient_privilege
		return withHint(err, "%s", a.missingRight())
	case "3F000", "42883", "42P01", "42703": // no such schema, function, table, column
		return withHint(err, `The schema is not the one that this sweep is made for: see "sweep migrate version".`)
	case "25006": // read_only_sql_transaction
		return withHint(err, "This server takes no changes: it is a standby, or default_transaction_read_only is on.")
	}
	if pg.Hint != "" {
		return withHint(err, "%s", pg.Hint)
	}
	return err
}

// missingRight says who gives this command the right that it lacks.
func (a *app) missingRight() string {
	command, _, _ := strings.Cut(a.command, " ")
	grant := "grant_operator"
	switch command {
	case "migrate":
		return "Run it as the role that owns the schema; to install one, as the owner of the database, or have that one: grant create on database ... to this role."
	case "enqueue":
		grant = "grant_producer"
	case "once", "run":
		grant = "grant_worker"
	}
	return fmt.Sprintf("The owner of the schema gives the right to it, and again after an upgrade: select outbox.%s('role').", grant)
}
