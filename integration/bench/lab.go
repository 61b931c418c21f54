package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fairclaim/fairclaim/integration/pgtest"
	"github.com/fairclaim/fairclaim/sql/migrations"
)

// serverSettings make room where PostgreSQL's defaults are those of a small machine.
// Durability is as it is by default: fsync, full_page_writes and synchronous_commit on.
func serverSettings() map[string]string {
	return map[string]string{
		"shared_buffers":       "2GB",
		"max_wal_size":         "16GB",
		"checkpoint_timeout":   "30min",
		"maintenance_work_mem": "512MB",
		"log_checkpoints":      "off",
	}
}

// lab is where experiments take place: one PostgreSQL, and what they found in it.
type lab struct {
	server *pgtest.Server
	admin  *pgxpool.Pool // superuser, database postgres
	size   size
	pgmq   string // the file with pgmq's SQL; empty: pgmq is absent
	report report
	log    io.Writer
}

func openLab(ctx context.Context, size size, options pgtest.Options, pgmq string, log io.Writer) (*lab, error) {
	options.Durable = true
	options.Settings = serverSettings()
	server, err := pgtest.Start(ctx, options)
	if err != nil {
		return nil, err
	}
	l := &lab{server: server, size: size, pgmq: pgmq, log: log}
	l.report = report{Began: time.Now(), Setups: []setup{}, Figures: []figure{}, Goals: []goal{}}
	l.admin, err = pgxpool.New(ctx, server.AdminDSN())
	if err == nil {
		l.report.Machine, err = l.describe(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, l.close(ctx))
	}
	return l, nil
}

func (l *lab) close(ctx context.Context) error {
	if l.admin != nil {
		l.admin.Close()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return l.server.Stop(ctx)
}

func (l *lab) conduct(ctx context.Context, e experiment) error {
	l.report.begin(e)
	start := time.Now()
	l.say("%s: %s", e.name, e.title)
	if err := e.run(ctx, l); err != nil {
		return fmt.Errorf("%s: %w", e.name, err)
	}
	l.report.Machine.LoadAfter = loadAverage()
	l.say("%s: %v", e.name, time.Since(start).Round(time.Second))
	return nil
}

// say tells how far the run is.
func (l *lab) say(format string, args ...any) {
	fmt.Fprintf(l.log, "%s  %s\n", time.Since(l.report.Began).Round(time.Second), fmt.Sprintf(format, args...))
}

// database is one of the lab's databases.
type database struct {
	pgtest.Database
	pool *pgxpool.Pool // the owner's, for what is not timed
}

// create makes an empty database.
func (l *lab) create(ctx context.Context, name string) (*database, error) {
	db, err := l.server.CreateDatabase(ctx, name, "")
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.New(ctx, db.DSN)
	return &database{db, pool}, err
}

// outbox makes a database with fairclaim in it, whose quotas cap nothing.
func (l *lab) outbox(ctx context.Context, name string) (*database, error) {
	db, err := l.create(ctx, name)
	if err != nil {
		return nil, err
	}
	if _, err := migrations.Up(ctx, db.DSN, migrations.Options{}); err != nil {
		return nil, err
	}
	return db, db.exec(ctx, `select outbox.configure('{"default_quota": 1000000000}')`, benchSQL)
}

func (l *lab) drop(ctx context.Context, db *database) error {
	db.pool.Close()
	return l.server.DropDatabase(ctx, db.Name)
}

// checkpoint puts what was written behind, so that it does not fall into what is timed.
func (l *lab) checkpoint(ctx context.Context) error {
	_, err := l.admin.Exec(ctx, "checkpoint")
	return err
}

// exec runs statements, each in a transaction of its own; one text may hold several.
func (db *database) exec(ctx context.Context, statements ...string) error {
	for _, sql := range statements {
		if _, err := db.pool.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("%w in: %.80s", err, sql)
		}
	}
	return nil
}

// single is a pool of one connection to db: a client with its own plans.
func (db *database) single(ctx context.Context) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(db.DSN)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = 1, 1
	return pgxpool.NewWithConfig(ctx, config)
}

// ask returns the only value of the only row.
func ask[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) (T, error) {
	rows, err := pool.Query(ctx, sql, args...)
	if err != nil {
		var zero T
		return zero, err
	}
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	if err != nil {
		return v, fmt.Errorf("%w in: %.80s", err, sql)
	}
	return v, nil
}

// describe tells what the run happens on.
func (l *lab) describe(ctx context.Context) (machine, error) {
	m := machine{
		CPU: fileValue("/proc/cpuinfo", "model name"), Cores: runtime.NumCPU(), Memory: fileValue("/proc/meminfo", "MemTotal"),
		System: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version(), LoadBefore: loadAverage(), Settings: map[string]string{},
	}
	if m.CPU == "" {
		m.CPU = "unknown CPU"
	}
	var kb float64
	if _, err := fmt.Sscanf(m.Memory, "%f kB", &kb); err == nil {
		m.Memory = fmt.Sprintf("%.0f GiB memory", kb/(1<<20))
	}
	m.PostgreSQL = "PostgreSQL " + l.server.Version() + " (" + string(l.server.Kind()) + ")"
	rows, err := l.admin.Query(ctx, `select s.name, current_setting(s.name) from pg_settings as s where s.name = any ($1) order by s.name`,
		append(slices.Collect(maps.Keys(serverSettings())), "fsync", "full_page_writes", "synchronous_commit", "wal_compression",
			"wal_sync_method", "autovacuum"))
	if err != nil {
		return m, err
	}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		m.Settings[name] = value
		return nil
	})
	delete(m.Settings, "log_checkpoints")
	return m, err
}

func (m machine) settings() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(m.Settings)) {
		all = append(all, name+" "+m.Settings[name])
	}
	return strings.Join(all, ", ")
}

// fileValue is the first "name: value" of a file of the proc file system, or nothing.
func fileValue(file, name string) string {
	f, err := os.Open(file)
	if err != nil {
		return ""
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func loadAverage() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
