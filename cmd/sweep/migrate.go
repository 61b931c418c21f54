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
	Up      migrateUpCmd      `cmd:"" help:"Install what is missing."`
	Down    migrateDownCmd    `cmd:"" help:"Take migrations back. This can delete all messages."`
	Version migrateVersionCmd `cmd:"" help:"Show which version is installed, and which is the newest."`
	SQL     migrateSQLCmd     `cmd:"" name:"sql" help:"Print the statements, for a migrator of your own."`
}

func (migrateCmd) Help() string {
	return `Examples:

    sweep migrate up
    sweep migrate version --json
    sweep migrate sql > outbox.sql`
}

type migrateFlags struct {
	LockTimeout duration `default:"5s" env:"SWEEP_MIGRATE_LOCK_TIMEOUT" help:"Give up when a statement waits for other sessions for longer than this (default ${default})."`
	Wait        duration `default:"1m" env:"SWEEP_MIGRATE_WAIT" help:"How long to wait for another migrator (default ${default})."`
}

func (f migrateFlags) options(a *app) migrations.Options {
	return migrations.Options{LockTimeout: time.Duration(f.LockTimeout), Wait: time.Duration(f.Wait), Logger: a.log}
}

func (f migrateFlags) Validate() error {
	if f.LockTimeout <= 0 || f.Wait <= 0 {
		return errors.New("--lock-timeout and --wait must be above 0")
	}
	return nil
}

type migrateUpCmd struct {
	To uint `placeholder:"VERSION" env:"SWEEP_MIGRATE_TO" help:"Stop at this version; without it, the newest."`
	migrateFlags
	jsonFlag
}

func (migrateUpCmd) Help() string {
	return `Every migration is one transaction. Run it as often as you like, also from many places at once: one does the work. The role that runs it owns the schema afterwards.

Examples:

    DATABASE_URL=postgres://owner@db/app sweep migrate up
    sweep migrate up --to 1`
}

// Run installs what is missing.
func (c *migrateUpCmd) Run(ctx context.Context, a *app) error {
	options := c.options(a)
	options.To = c.To
	result, err := migrations.Up(ctx, a.databaseURL, options)
	return a.migrated(ctx, result, c.JSON, err)
}

type migrateDownCmd struct {
	Steps *int  `xor:"target" placeholder:"N" env:"SWEEP_MIGRATE_STEPS" help:"How many migrations to take back; without it, one."`
	To    *uint `xor:"target" placeholder:"VERSION" env:"SWEEP_MIGRATE_DOWN_TO" help:"Go down to this version instead; 0 takes everything back."`
	All   bool  `xor:"target" env:"SWEEP_MIGRATE_DOWN_ALL" help:"Take everything back, and with it every message."`
	Yes   bool  `short:"y" env:"SWEEP_MIGRATE_YES" help:"Do it without asking."`
	migrateFlags
	jsonFlag
}

func (migrateDownCmd) Help() string {
	return `Takes one migration back, or what the flags say. It says what that is, and asks; without a terminal it needs --yes. With --all every message is deleted; the empty schema stays.

Examples:

    sweep migrate down
    sweep migrate down --steps 2
    sweep migrate down --all --yes`
}

// Validate refuses numbers of steps that go nowhere.
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

type migrateStatus struct {
	Version   uint `json:"version"`
	Latest    uint `json:"latest"`
	Installed bool `json:"installed"`
	Dirty     bool `json:"dirty"`
}

// Run shows what is installed.
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
		text += "; a run was cut off, and the next one repairs that"
	}
	return a.printf("%s", text)
}

type migrateSQLCmd struct {
	From uint  `placeholder:"VERSION" default:"0" env:"SWEEP_MIGRATE_SQL_FROM" help:"The version that is there; 0 is nothing (default ${default})."`
	To   *uint `placeholder:"VERSION" env:"SWEEP_MIGRATE_SQL_TO" help:"The version to go to, up or down; without it, the newest."`
}

func (migrateSQLCmd) Help() string {
	return `Needs no database. Each migration stands between begin and commit.

Examples:

    sweep migrate sql | psql --set ON_ERROR_STOP=1
    sweep migrate sql --from 2 --to 1`
}

// Run prints the statements.
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

// migrated prints what was done, beside an error too.
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

// migrateError makes a failed connection as clear as the other commands do.
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
		return withHint(err, "Nothing was lost: run it again. --lock-timeout and --wait give it more time.")
	case errors.Is(err, migrations.ErrPooler):
		return withHint(err, "Most services name a direct or session-mode address beside the pooled one, often the same host at port 5432. Everything else of sweep works through the pooler.")
	case errors.Is(err, migrations.ErrForeignSchema):
		return withHint(err, "Rename that schema, or install into another database.")
	}
	return err
}
