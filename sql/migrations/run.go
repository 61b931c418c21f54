package migrations

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/golang-migrate/migrate/v4"
	pgxmigrate "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	"github.com/golang-migrate/migrate/v4/source"
	"github.com/golang-migrate/migrate/v4/source/iofs"
)

// All, as a number of steps, is down to nothing.
const All = math.MaxInt

// Options are the knobs of [Up] and [Down]. The zero value is ready.
type Options struct {
	// To is the version at which Up stops; 0 is the newest. Down has no use for it.
	To uint

	// LockTimeout bounds each wait of a migration for a lock that another session
	// holds; 0 is 5 s. While it waits, whoever wants the same table queues behind
	// it, so a migration gives up soon and can be run again.
	LockTimeout time.Duration

	// Wait bounds the wait for other migrators to finish; 0 is 1 minute.
	Wait time.Duration

	// Logger gets one line a migration and one for a repair; nil is silent.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.LockTimeout <= 0 {
		o.LockTimeout = 5 * time.Second
	}
	if o.Wait <= 0 {
		o.Wait = time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Result is what a run did. It is filled in beside an error too, with what was
// done before.
type Result struct {
	From, To uint        // the versions that stood before and after; 0 is nothing
	Ran      []Migration // in the order in which they ran
	Repaired bool        // a version table that a crash had left dirty was set right
}

// Status is what [Version] finds.
type Status struct {
	Version   uint // the newest migration that stands; 0 is nothing
	Latest    uint // the newest one that this program knows
	Installed bool // Version is above 0
	Dirty     bool // the version table is marked dirty; the next Up or Down repairs it
}

// Up installs what is missing, up to opts.To. dsn is a postgres:// URL or a string
// of keyword=value pairs; what it leaves out comes from the PG* environment
// variables. The role becomes the owner of all objects; it needs the right to
// create the schema, or to own it.
//
// A migration that fails is rolled back as a whole, and those before it stand.
// When ctx ends, the running migration is rolled back. Many may call it at once:
// one does the work, the others wait and find nothing to do.
func Up(ctx context.Context, dsn string, opts Options) (Result, error) {
	return run(ctx, dsn, opts, func(all []Migration, at int) ([]Migration, error) {
		target := len(all) - 1
		if opts.To != 0 {
			var ok bool
			if target, ok = position(all, int64(opts.To)); !ok {
				return nil, fmt.Errorf("there is no version %d", opts.To)
			}
		}
		if target < at {
			return nil, fmt.Errorf("version %d is behind the schema's, %d", all[target].Version, all[at].Version)
		}
		return all[at+1 : target+1], nil
	}, source.Up)
}

// Down takes away the newest steps migrations, or [All], with what their tables
// hold. The schema itself and the empty version table stay. It is otherwise like
// [Up].
func Down(ctx context.Context, dsn string, steps int, opts Options) (Result, error) {
	if steps < 1 {
		return Result{}, fmt.Errorf("migrate down: %d steps are not at least 1", steps)
	}
	return run(ctx, dsn, opts, func(all []Migration, at int) ([]Migration, error) {
		var plan []Migration
		for i := at; i >= 0 && len(plan) < steps; i-- {
			plan = append(plan, all[i])
		}
		return plan, nil
	}, source.Down)
}

// Version tells what is installed. It changes nothing and takes no lock. Beside
// [ErrNewerSchema] and [ErrInconsistent] the status is filled in.
func Version(ctx context.Context, dsn string) (Status, error) {
	all, err := List()
	if err != nil {
		return Status{}, err
	}
	status := Status{Latest: all[len(all)-1].Version}
	s, err := connect(ctx, dsn)
	if err != nil {
		return status, fmt.Errorf("read the version: %w", err)
	}
	defer s.close()
	st, err := readState(ctx, s.conn)
	if err != nil {
		return status, err
	}
	here, err := st.judge(all)
	status.Version = uint(max(here.version, 0))
	status.Installed = status.Version > 0
	status.Dirty = st.dirty
	return status, err
}

// planner gives the migrations to run when all[at] is the newest that stands; -1
// is none.
type planner func(all []Migration, at int) ([]Migration, error)

func run(ctx context.Context, dsn string, opts Options, plan planner, direction source.Direction) (Result, error) {
	result, err := runSession(ctx, dsn, opts.withDefaults(), plan, direction)
	if err != nil {
		return result, fmt.Errorf("migrate %s: %w", direction, err)
	}
	return result, nil
}

func runSession(ctx context.Context, dsn string, opts Options, plan planner, direction source.Direction) (Result, error) {
	all, err := List()
	if err != nil {
		return Result{}, err
	}
	s, err := connect(ctx, dsn)
	if err != nil {
		return Result{}, err
	}
	defer s.close()
	if err := s.checkPooler(); err != nil {
		return Result{}, err
	}
	if err := s.prepare(opts.LockTimeout); err != nil {
		return Result{}, err
	}
	if err := s.lock(opts.Wait); err != nil {
		return Result{}, err
	}

	st, err := readState(ctx, s.conn)
	if err != nil {
		return Result{}, err
	}
	here, err := st.judge(all)
	if err != nil {
		return Result{}, err
	}
	if st.schema && st.owner != st.role {
		return Result{}, fmt.Errorf("%w: %q, not %q: connect as that role", ErrForeignOwner, st.owner, st.role)
	}
	result := Result{From: uint(max(here.version, 0)), To: uint(max(here.version, 0))}
	at, _ := position(all, here.version)
	todo, err := plan(all, at)
	if err != nil || (len(todo) == 0 && !here.repair) {
		return result, err
	}

	r, err := s.newRunner(st.schema)
	if err != nil {
		return result, err
	}
	defer r.Close() // of its two errors, neither is about anything that still counts
	if here.repair {
		if err := r.Force(int(here.version)); err != nil {
			return result, fmt.Errorf("repair the version table: %w", s.readable(err))
		}
		result.Repaired = true
		opts.Logger.Info("version table repaired", "version", result.From)
	}
	err = s.apply(r, all, todo, direction, opts, &result)
	return result, err
}

// newRunner creates the schema where it is missing, and golang-migrate's runner.
func (s *session) newRunner(schemaExists bool) (*migrate.Migrate, error) {
	if !schemaExists {
		if _, err := s.conn.Exec(s.ctx, `create schema outbox`); err != nil {
			return nil, fmt.Errorf("create the schema: %w", err)
		}
	}
	// While it looks for its table, the driver takes its lock, of which the name of
	// the database is a part, here as its command line has it. This session holds
	// that lock already, so it is granted at once.
	pool := s.database()
	db, err := pgxmigrate.WithInstance(pool, &pgxmigrate.Config{
		DatabaseName:    "/" + s.name,
		SchemaName:      schemaName,
		MigrationsTable: versionTable,
	})
	if err != nil {
		defer pool.Close()
		return nil, fmt.Errorf("create the version table: %w", s.readable(err))
	}
	src, err := iofs.New(files, ".")
	if err != nil {
		return nil, fmt.Errorf("read the migrations: %w", err)
	}
	r, err := migrate.NewWithInstance("embedded", src, "pgx5", lockedDriver{db})
	if err != nil {
		return nil, fmt.Errorf("set up golang-migrate: %w", err)
	}
	return r, nil
}

// apply runs the migrations one by one and, where one fails, sets the version
// table back to what stands.
func (s *session) apply(r *migrate.Migrate, all, todo []Migration, direction source.Direction, opts Options, result *Result) error {
	step := 1
	if direction == source.Down {
		step = -1
	}
	for _, m := range todo {
		if err := context.Cause(s.ctx); err != nil {
			return fmt.Errorf("before %s: %w", m, err)
		}
		start := time.Now()
		if err := r.Steps(step); err != nil {
			return s.clean(r, all, m, err, result)
		}
		result.Ran = append(result.Ran, m)
		at, _ := position(all, int64(m.Version))
		result.To = versionAt(all, at+min(step, 0))
		opts.Logger.Info("migrated", "direction", string(direction), "migration", m.String(), "took", time.Since(start).Round(time.Millisecond))
	}
	return nil
}

func versionAt(all []Migration, at int) uint {
	if at < 0 {
		return 0
	}
	return all[at].Version
}

// clean makes the version table tell the truth again after m failed with cause.
func (s *session) clean(r *migrate.Migrate, all []Migration, m Migration, cause error, result *Result) error {
	err := fmt.Errorf("%s: %w", m, s.readable(cause))

	st, readErr := readState(s.tail, s.conn)
	if readErr != nil {
		return errors.Join(err, fmt.Errorf("the version may be left dirty, the next run repairs it: %w", readErr))
	}
	here, judgeErr := st.judge(all)
	if judgeErr != nil {
		return errors.Join(err, judgeErr)
	}
	result.To = uint(max(here.version, 0))
	if here.repair {
		if forceErr := r.Force(int(here.version)); forceErr != nil {
			return errors.Join(err, fmt.Errorf("the version is left dirty, the next run repairs it: %w", s.readable(forceErr)))
		}
	}
	return err
}
