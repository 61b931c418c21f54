package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/internal/connstring"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

type migrateCmd struct {
	Up      migrateUpCmd      `cmd:"" help:"Install the schema, or upgrade it."`
	Down    migrateDownCmd    `cmd:"" help:"Take migrations back. This can delete all messages."`
	Version migrateVersionCmd `cmd:"" help:"Show the installed version of the schema, and the newest."`
	SQL     migrateSQLCmd     `cmd:"" name:"sql" help:"Print the SQL, for a migration tool of your own."`
}

func (migrateCmd) Help() string {
	return `Examples:

    sweep migrate up
    sweep migrate version --json
    sweep migrate sql > outbox.sql`
}

type migrateFlags struct {
	LockTimeout duration `default:"5s" env:"SWEEP_MIGRATE_LOCK_TIMEOUT" help:"Give up when a statement waits longer than this for a lock of another session (default ${default})."`
	Wait        duration `default:"1m" env:"SWEEP_MIGRATE_WAIT" help:"How long to wait while another migration runs (default ${default})."`
}

func (f migrateFlags) options(a *app) migrations.Options {
	return migrations.Options{LockTimeout: time.Duration(f.LockTimeout), Wait: time.Duration(f.Wait), Logger: a.log}
}

func (f migrateFlags) Validate() error {
	switch {
	case f.LockTimeout <= 0:
		return fmt.Errorf("--lock-timeout must be above 0, not %v", time.Duration(f.LockTimeout))
	case f.Wait <= 0:
		return fmt.Errorf("--wait must be above 0, not %v", time.Duration(f.Wait))
	}
	return nil
}

type migrateUpCmd struct {
	To uint `placeholder:"VERSION" env:"SWEEP_MIGRATE_TO" help:"Stop at this version; without it, the newest."`
	migrateFlags
	jsonFlag
}

func (migrateUpCmd) Help() string {
	return `Each migration runs in a transaction of its own. The command can run again at any time, and in many places at once: one of them does the work. The role that installs the schema owns it.

Examples:

    DATABASE_URL=postgres://owner@db/app sweep migrate up
    sweep migrate up --to 1`
}

// Run installs or upgrades the schema.
func (c *migrateUpCmd) Run(ctx context.Context, a *app) error {
	if newest, err := newestSchema(); err != nil {
		return err
	} else if c.To > newest {
		return usage("--to: there is no version %d, the newest is %d", c.To, newest)
	}
	options := c.options(a)
	options.To = c.To
	result, err := migrations.Up(ctx, a.databaseURL, options)
	return a.migrated(ctx, result, c.JSON, err)
}

type migrateDownCmd struct {
	Steps *int  `xor:"target" placeholder:"N" env:"SWEEP_MIGRATE_STEPS" help:"How many migrations to take back (default 1)."`
	To    *uint `xor:"target" placeholder:"VERSION" env:"SWEEP_MIGRATE_DOWN_TO" help:"Take back all migrations above this version; 0 takes everything back."`
	All   bool  `xor:"target" env:"SWEEP_MIGRATE_DOWN_ALL" help:"Take everything back. This deletes every message."`
	Yes   bool  `short:"y" env:"SWEEP_MIGRATE_YES" help:"Take back without asking."`
	migrateFlags
	jsonFlag
}

func (migrateDownCmd) Help() string {
	return `Takes back the last migration, or as many as the flags say. It names them and asks first; without a terminal it needs --yes. --all and --to 0 delete every message; the empty schema stays.

Examples:

    sweep migrate down
    sweep migrate down --steps 2
    sweep migrate down --all --yes`
}

// Validate checks the number of steps.
func (c *migrateDownCmd) Validate() error {
	if c.Steps != nil && *c.Steps < 1 {
		return fmt.Errorf("--steps must be 1 or more, not %d", *c.Steps)
	}
	return nil
}

// Run takes migrations back.
func (c *migrateDownCmd) Run(ctx context.Context, a *app) error {
	at, err := migrations.Version(ctx, a.databaseURL)
	if err != nil {
		return a.migrateError(ctx, err)
	}
	all, err := migrations.List()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m migrations.Migration) bool { return m.Version > at.Version })
	slices.Reverse(all)
	steps := min(1, len(all))
	if c.Steps != nil {
		steps = min(*c.Steps, len(all))
	}
	if c.All {
		steps = len(all)
	}
	if c.To != nil {
		steps = slices.IndexFunc(all, func(m migrations.Migration) bool { return m.Version == *c.To })
		if *c.To == 0 {
			steps = len(all)
		}
		if steps < 0 {
			return usage("--to: version %d is not installed (version %d is)", *c.To, at.Version)
		}
	}
	if steps == 0 {
		return a.migrated(ctx, migrations.Result{From: at.Version, To: at.Version}, c.JSON, nil)
	}
	if err := a.confirm(ctx, c.Yes, downText(all[:steps], steps == len(all))); err != nil {
		return err
	}
	result, err := migrations.Down(ctx, a.databaseURL, steps, c.options(a))
	return a.migrated(ctx, result, c.JSON, err)
}

func downText(back []migrations.Migration, everything bool) string {
	names := make([]string, len(back))
	for i, m := range back {
		names[i] = m.String()
	}
	loss := ""
	if everything {
		loss = " and delete every message and setting"
	}
	return fmt.Sprintf("take back %s%s", strings.Join(names, ", "), loss)
}

type migrateVersionCmd struct{ jsonFlag }

func (migrateVersionCmd) Help() string {
	return `Examples:

    sweep migrate version
    sweep migrate version --json | jq .installed`
}

type migrateStatus struct {
	Version   uint `json:"version"`
	Latest    uint `json:"latest"`
	Installed bool `json:"installed"`
	Dirty     bool `json:"dirty"`
}

// Run shows the installed version.
func (c *migrateVersionCmd) Run(ctx context.Context, a *app) error {
	s, err := migrations.Version(ctx, a.databaseURL)
	if err != nil && !errors.Is(err, migrations.ErrNewerSchema) {
		return a.migrateError(ctx, err)
	}
	if c.JSON {
		return a.printJSON(migrateStatus(s))
	}
	text := fmt.Sprintf("version %d, the newest that this sweep knows", s.Version)
	switch {
	case s.Version > s.Latest:
		text = fmt.Sprintf("version %d, newer than this sweep, which knows %d: use a newer sweep", s.Version, s.Latest)
	case !s.Installed:
		text = fmt.Sprintf(`nothing is installed: "sweep migrate up" installs version %d`, s.Latest)
	case s.Version < s.Latest:
		text = fmt.Sprintf(`version %d: "sweep migrate up" goes to %d`, s.Version, s.Latest)
	}
	if s.Dirty {
		text += "; a migration was cut off, and the next one repairs that"
	}
	return a.printf("%s", text)
}

type migrateSQLCmd struct {
	From uint  `placeholder:"VERSION" default:"0" env:"SWEEP_MIGRATE_SQL_FROM" help:"The installed version; 0 is nothing (default ${default})."`
	To   *uint `placeholder:"VERSION" env:"SWEEP_MIGRATE_SQL_TO" help:"The version to migrate to, up or down; without it, the newest."`
}

func (migrateSQLCmd) Help() string {
	return `Needs no database. Each migration is printed between begin and commit.

Examples:

    sweep migrate sql | psql --set ON_ERROR_STOP=1
    sweep migrate sql --from 2 --to 1`
}

// Run prints the SQL.
func (c *migrateSQLCmd) Run(_ context.Context, a *app) error {
	newest, err := newestSchema()
	if err != nil {
		return err
	}
	to := newest
	if c.To != nil {
		to = *c.To
	}
	switch {
	case c.From > newest:
		return usage("--from: there is no version %d, the newest is %d", c.From, newest)
	case to > newest:
		return usage("--to: there is no version %d, the newest is %d", to, newest)
	}
	return migrations.SQL(a.stdout, c.From, to)
}

type migrateResult struct {
	From     uint     `json:"from"`
	To       uint     `json:"to"`
	Ran      []string `json:"ran"`
	Repaired bool     `json:"repaired"`
}

// migrated prints which migrations ran, also where one of them failed.
func (a *app) migrated(ctx context.Context, r migrations.Result, asJSON bool, err error) error {
	if err != nil && len(r.Ran) == 0 && !r.Repaired {
		return a.migrateError(ctx, err)
	}
	out := migrateResult{From: r.From, To: r.To, Ran: make([]string, len(r.Ran)), Repaired: r.Repaired}
	for i, m := range r.Ran {
		out.Ran[i] = m.String()
	}
	var printed error
	switch {
	case asJSON:
		printed = a.printJSON(out)
	case r.From == r.To:
		printed = a.printf("version %d, nothing to do", r.To)
	default:
		printed = a.printf("version %d -> %d: %s", r.From, r.To, strings.Join(out.Ran, ", "))
	}
	if err != nil {
		return a.migrateError(ctx, err)
	}
	return printed
}

// migrateError adds hints to the errors of a migration, and words a failed connection as
// the other commands do.
func (a *app) migrateError(ctx context.Context, err error) error {
	var refused *pgconn.ConnectError
	if errors.As(err, &refused) {
		if config, parseErr := connstring.Config(a.databaseURL); parseErr == nil {
			return connectError(ctx, config, err)
		}
	}
	if _, parseErr := a.poolConfig(""); parseErr != nil {
		return parseErr
	}
	switch {
	case errors.Is(err, migrations.ErrNewerSchema):
		return withHint(err, "Use a newer sweep.")
	case errors.Is(err, migrations.ErrLockTimeout), errors.Is(err, migrations.ErrBusy):
		return withHint(err, "Nothing was lost: run the command again. --lock-timeout and --wait give it more time.")
	case errors.Is(err, migrations.ErrPooler):
		return withHint(err, "Connect to the database directly, or to the pooler in session mode: most services offer that at another address, often the same host at port 5432. All other commands of sweep work through the pooler.")
	case errors.Is(err, migrations.ErrForeignSchema):
		return withHint(err, "Rename that schema, or install into another database.")
	}
	return err
}
