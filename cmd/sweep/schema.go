package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/sql/migrations"
)

// checkSchema returns an error for a database without the schema, or with an older
// version than this program needs. For a newer version it logs a warning: during a rolling
// upgrade that is in order. It is silent where the role may not read the version.
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
	latest, err := newestSchema()
	if err != nil {
		return err
	}
	switch {
	case version < latest:
		return withHint(fmt.Errorf("the schema is at version %d, this sweep needs %d", version, latest), `Run "sweep migrate up" first.`)
	case version > latest:
		a.log.Warn("the schema is newer than this sweep: install a newer sweep soon", "schema", version, "known", latest)
	}
	return nil
}

// newestSchema is the newest version of the schema that this program can install.
func newestSchema() (uint, error) {
	all, err := migrations.List()
	if err != nil {
		return 0, err
	}
	return all[len(all)-1].Version, nil
}
