// Package migrations installs the schema outbox and keeps it up to date.
//
// The migrations are the .sql files beside this one, run by golang-migrate. What
// golang-migrate leaves to its caller is added here: the schema is created first
// and a foreign one refused, one migrator runs at a time, locks are not waited
// for without end, and a version that was left dirty is repaired where that is
// safe.
//
// Each file is one transaction: the server takes it as one simple query, so none
// holds a begin or commit of its own. From version 3 on its first statement sets the
// search_path for that transaction: begin atomic bodies, views and constraints keep what names
// mean while they are made. The last statement of an up file adds its version to
// outbox.migration, the first after that of a down file takes it away. That table,
// the ledger, therefore tells which migrations stand, whatever became of the
// process that ran them; golang-migrate's own table, outbox.schema_migrations, is
// written in transactions of its own and may be left dirty on either side.
//
// The session must be a real one: a pooler in transaction mode cannot hold the
// locks, and is refused ([ErrPooler]).
package migrations

import (
	"embed"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"

	"github.com/golang-migrate/migrate/v4/source"
)

// pin is the first statement of each transaction that [SQL] writes. Files up to version 2 do
// not have it themselves.
const pin = "set local search_path = pg_catalog, pg_temp;\n"

//go:embed *.sql
var files embed.FS

// Migration names one pair of files.
type Migration struct {
	Version uint   // 1 is the first
	Name    string // without version and extension
}

// String is the beginning of the file names: 000001_outbox.
func (m Migration) String() string { return fmt.Sprintf("%06d_%s", m.Version, m.Name) }

func (m Migration) file(d source.Direction) string {
	return fmt.Sprintf("%s.%s.sql", m, d)
}

// List returns all migrations in the order in which they are installed.
func List() ([]Migration, error) {
	names, err := fs.Glob(files, "*.up.sql")
	if err != nil {
		return nil, fmt.Errorf("list migrations: %w", err)
	}
	all := make([]Migration, 0, len(names))
	for _, name := range names {
		parsed, err := source.Parse(path.Base(name))
		if err != nil {
			return nil, fmt.Errorf("list migrations: %s: %w", name, err)
		}
		all = append(all, Migration{Version: parsed.Version, Name: parsed.Identifier})
	}
	slices.SortFunc(all, func(a, b Migration) int { return int(a.Version) - int(b.Version) })
	return all, nil
}

// SQL writes the statements that lead from version from to version to, for those
// who install with a migrator of their own. 0 stands for nothing installed. Each
// migration is a transaction, between begin and commit; from 0, the creation of
// the schema comes first. What is installed in this way has its ledger, so that
// [Up] can take over at any time.
func SQL(w io.Writer, from, to uint) error {
	all, err := List()
	if err != nil {
		return err
	}
	for _, v := range []uint{from, to} {
		if v != 0 && !slices.ContainsFunc(all, func(m Migration) bool { return m.Version == v }) {
			return fmt.Errorf("print migrations: there is no version %d", v)
		}
	}

	direction := source.Up
	low, high := from, to
	if from > to {
		direction = source.Down
		low, high = to, from
		slices.Reverse(all)
	}
	if from == 0 && to > 0 {
		if _, err := fmt.Fprint(w, "create schema if not exists outbox;\n"); err != nil {
			return fmt.Errorf("print migrations: %w", err)
		}
	}
	for _, m := range all {
		if m.Version <= low || m.Version > high {
			continue
		}
		name := m.file(direction)
		text, err := files.ReadFile(name)
		if err != nil {
			return fmt.Errorf("print migrations: %w", err)
		}
		if _, err := fmt.Fprintf(w, "\n-- %s\nbegin;\n%s\n%s\ncommit;\n", name, pin, text); err != nil {
			return fmt.Errorf("print migrations: %w", err)
		}
	}
	return nil
}
