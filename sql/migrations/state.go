package migrations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// none is golang-migrate's version for nothing installed, also in its table.
const none = -1

// state is what a database says of the schema.
type state struct {
	schema    bool
	owner     string   // of the schema
	role      string   // that asks
	strangers []string // what else stands in the schema; only read when there is no ledger

	hasLedger bool
	ledger    []int64 // ascending

	hasTable bool
	recorded int64 // none without a row
	dirty    bool
}

func readState(ctx context.Context, conn *pgx.Conn) (state, error) {
	st := state{recorded: none}
	// The search_path comes first: it decides what the operators below are.
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{
		BeginQuery: "begin isolation level repeatable read, read only; set local search_path = pg_catalog, pg_temp",
	})
	if err != nil {
		return st, fmt.Errorf("read the schema's state: %w", err)
	}
	defer tx.Rollback(ctx) //nolint:errcheck // read only
	if err := st.read(ctx, tx); err != nil {
		return st, fmt.Errorf("read the schema's state: %w", err)
	}
	return st, nil
}

func (st *state) read(ctx context.Context, tx pgx.Tx) error {
	const columns = `(
		select pg_catalog.string_agg(a.attname || ' ' || pg_catalog.format_type(a.atttypid, a.atttypmod), ', ' order by a.attnum)
		from pg_catalog.pg_class as c join pg_catalog.pg_attribute as a on a.attrelid = c.oid
		where c.relnamespace = n.oid and c.relname = $%d and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped)`
	var ledger, table *string
	err := tx.QueryRow(ctx, fmt.Sprintf(`select `+columns+`, `+columns+`, pg_catalog.pg_get_userbyid(n.nspowner), current_user
		from pg_catalog.pg_namespace as n where n.nspname = $3`, 1, 2),
		ledgerTable, versionTable, schemaName).Scan(&ledger, &table, &st.owner, &st.role)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	st.schema = true
	st.hasLedger = ledger != nil && strings.HasPrefix(*ledger, "version bigint, applied_at timestamp with time zone")
	st.hasTable = table != nil && *table == "version bigint, dirty boolean"

	if st.hasLedger {
		rows, err := tx.Query(ctx, `select m.version from outbox.migration as m order by m.version`)
		if err != nil {
			return err
		}
		if st.ledger, err = pgx.CollectRows(rows, pgx.RowTo[int64]); err != nil {
			return err
		}
	} else if err := st.readStrangers(ctx, tx); err != nil {
		return err
	}
	if st.hasTable {
		err := tx.QueryRow(ctx, `select m.version, m.dirty from outbox.schema_migrations as m limit 1`).Scan(&st.recorded, &st.dirty)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
	}
	return nil
}

// readStrangers finds everything that stands in the schema, of whatever kind, but
// for the version table. Default privileges belong to no one in particular.
func (st *state) readStrangers(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, `
		select pg_catalog.pg_describe_object(d.classid, d.objid, d.objsubid)
		from pg_catalog.pg_depend as d
		where d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass
		  and d.refobjid = (select n.oid from pg_catalog.pg_namespace as n where n.nspname = $1)
		  and d.classid <> 'pg_catalog.pg_default_acl'::pg_catalog.regclass
		  and not ($2 and d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
		           and d.objid = (select c.oid from pg_catalog.pg_class as c where c.relnamespace = d.refobjid and c.relname = $3))
		order by 1 limit 4`, schemaName, st.hasTable, versionTable)
	if err != nil {
		return err
	}
	st.strangers, err = pgx.CollectRows(rows, pgx.RowTo[string])
	return err
}

// standing is what judge makes of a state.
type standing struct {
	version int64 // the newest migration that stands, or none
	repair  bool  // the version table has to be set to it first
}

// judge finds the version that really stands. It errs on the side of refusing:
// what it repairs is only what a process leaves that died, or lost its
// connection, between the three transactions in which golang-migrate runs a
// migration (mark dirty, run, mark clean).
func (st state) judge(all []Migration) (standing, error) {
	if !st.hasLedger {
		return st.judgeWithoutLedger(all)
	}
	if len(st.ledger) == 0 {
		return standing{version: none}, fmt.Errorf("%w: outbox.migration is empty", ErrInconsistent)
	}
	newest := st.ledger[len(st.ledger)-1]
	here := standing{version: newest}
	last := int64(all[len(all)-1].Version)
	if newest > last {
		return here, fmt.Errorf("%w: it is at version %d, this program knows %d", ErrNewerSchema, newest, last)
	}
	for i, m := range all {
		if int64(m.Version) > newest {
			break
		}
		if i >= len(st.ledger) || st.ledger[i] != int64(m.Version) {
			return here, fmt.Errorf("%w: outbox.migration should hold every version up to %d, and holds %v", ErrInconsistent, newest, st.ledger)
		}
	}
	if at, _ := position(all, newest); len(st.ledger) != at+1 {
		return here, fmt.Errorf("%w: outbox.migration holds versions that there never were: %v", ErrInconsistent, st.ledger)
	}

	switch {
	case !st.hasTable:
		here.repair = true // installed by another migrator, from SQL's output
	case st.dirty:
		marked, ok := position(all, st.recorded)
		at, _ := position(all, newest)
		if !ok || marked-at > 1 || at-marked > 1 {
			return here, fmt.Errorf("%w: outbox.migration says %d, outbox.schema_migrations says %d and dirty", ErrInconsistent, newest, st.recorded)
		}
		here.repair = true
	case st.recorded != newest:
		return here, fmt.Errorf("%w: outbox.migration says %d, outbox.schema_migrations says %d", ErrInconsistent, newest, st.recorded)
	}
	return here, nil
}

func (st state) judgeWithoutLedger(all []Migration) (standing, error) {
	here := standing{version: none}
	switch {
	case len(st.strangers) > 0:
		found := slices.Clone(st.strangers)
		if len(found) > 3 {
			found[3] = "more"
		}
		return here, fmt.Errorf("%w: it has no table outbox.migration of ours, but %s; rename that schema, or install into another database",
			ErrForeignSchema, strings.Join(found, ", "))
	case st.recorded == none:
		here.repair = st.dirty
	case st.dirty && st.recorded == int64(all[0].Version):
		here.repair = true
	default:
		return here, fmt.Errorf("%w: outbox.schema_migrations says %d, but there is no table outbox.migration", ErrForeignSchema, st.recorded)
	}
	return here, nil
}

// position is the index of a version in all, -1 for none.
func position(all []Migration, version int64) (int, bool) {
	if version == none {
		return -1, true
	}
	i := slices.IndexFunc(all, func(m Migration) bool { return int64(m.Version) == version })
	return i, i >= 0
}
