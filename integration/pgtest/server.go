package pgtest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// minMajor is the oldest PostgreSQL that fairclaim supports.
const minMajor = 15

const (
	// startTimeout bounds the start of a server, the pull of an image included,
	// stopTimeout what is done to end it.
	startTimeout = 5 * time.Minute
	stopTimeout  = 2 * time.Minute

	// connectTimeout bounds one attempt to connect; a server that starts is asked again.
	connectTimeout = 5 * time.Second
)

// Kind says where a [Server] comes from.
type Kind string

const (
	KindDSN    Kind = "dsn"    // an existing server, named by FAIRCLAIM_TEST_DSN
	KindBinary Kind = "binary" // a throw-away cluster, run from the machine's server binaries
	KindDocker Kind = "docker" // a throw-away container
)

// Options say which PostgreSQL to start and how. The zero value takes what the
// environment names or the machine has, with settings for tests.
type Options struct {
	// Kind defaults to $FAIRCLAIM_PG, and to the first kind that is there where that is empty.
	Kind Kind
	// Major defaults to $FAIRCLAIM_PG_MAJOR, and to any supported version where that is empty.
	Major int
	// Durable leaves fsync, full_page_writes and synchronous_commit on. Without it
	// a crash of the machine may lose data; a crash of PostgreSQL does not.
	Durable bool
	// Settings are further server settings by name. An existing server ignores them.
	Settings map[string]string
	// Keep lets the server outlive the process that does not call Stop, however it
	// ends. [Server.StopCommand] says how to end it then.
	Keep bool
	// Log is told which PostgreSQL is used, in one line. Nil means standard error.
	Log io.Writer
}

// settings are the server settings that o asks for.
func (o Options) settings() map[string]string {
	all := map[string]string{
		"max_connections":           "200",
		"max_prepared_transactions": "10",
		"timezone":                  "UTC",
		"log_timezone":              "UTC",
		"log_min_messages":          "warning",
		"log_line_prefix":           "%m [%p] %u@%d ",
		"lc_messages":               "C",
		"password_encryption":       "scram-sha-256",
	}
	if !o.Durable {
		all["fsync"] = "off"
		all["full_page_writes"] = "off"
		all["synchronous_commit"] = "off"
	}
	maps.Copy(all, o.Settings)
	return all
}

// fromEnv fills in what o leaves to the environment.
func (o Options) fromEnv() (Options, error) {
	if _, err := patience(); err != nil {
		return o, err
	}
	o.Kind = cmp.Or(o.Kind, Kind(os.Getenv("FAIRCLAIM_PG")))
	if major := os.Getenv("FAIRCLAIM_PG_MAJOR"); o.Major == 0 && major != "" {
		n, err := strconv.Atoi(major)
		if err != nil || n < minMajor {
			return o, fmt.Errorf("FAIRCLAIM_PG_MAJOR=%q: want a number from %d on", major, minMajor)
		}
		o.Major = n
	}
	if o.Log == nil {
		o.Log = os.Stderr
	}
	return o, nil
}

// engine is what runs a server: one for each [Kind].
type engine interface {
	// dsn names the database postgres (or the one that was given) for the administrator.
	dsn() string
	// origin says where the server comes from, in a few words.
	origin() string
	// failed returns why the server is gone, or nil while it may still come up.
	failed(ctx context.Context) error
	// start launches a server that has ended; it may not answer yet.
	start(ctx context.Context) error
	// kill ends the server as a crash does, interrupt in an orderly way; both
	// return when it has ended, and do nothing to one that has.
	kill(ctx context.Context) error
	interrupt(ctx context.Context) error
	// keep lets the server outlive this process.
	keep(ctx context.Context) error
	// remove ends the server at once and removes everything that belongs to it.
	remove(ctx context.Context) error
	// removeCommand is remove as a line for a shell.
	removeCommand() string
}

// Server is a running PostgreSQL. Its methods may be called concurrently,
// apart from Kill, Restart and Stop, which change it.
type Server struct {
	engine  engine
	kind    Kind
	version string
	super   bool   // whether the administrator is a superuser
	owner   role   // owns every database that CreateDatabase makes
	run     string // tells the names of this server object from those of others on one PostgreSQL

	stop    sync.Once
	stopErr error
}

// Start starts the PostgreSQL that opts and the environment ask for, or takes
// the existing one, and waits until it answers. Where there is none the error
// is one line that says what to install.
func Start(ctx context.Context, opts Options) (*Server, error) {
	ctx, cancel := context.WithTimeout(ctx, Scaled(startTimeout))
	defer cancel()
	opts, err := opts.fromEnv()
	if err != nil {
		return nil, err
	}
	kind, engine, err := open(ctx, opts)
	if err != nil {
		return nil, err
	}
	s := &Server{engine: engine, kind: kind, run: randomHex(3)}
	if err := s.begin(ctx, opts); err != nil {
		return nil, errors.Join(err, discard(engine))
	}
	fmt.Fprintf(opts.Log, "PostgreSQL %s %s\n", s.version, engine.origin())
	return s, nil
}

// begin waits for the server, checks its version and makes the owner role.
func (s *Server) begin(ctx context.Context, opts Options) error {
	if err := s.wait(ctx); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, s.AdminDSN())
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx))

	var number int
	err = conn.QueryRow(ctx, `
		select current_setting('server_version_num')::int, split_part(current_setting('server_version'), ' ', 1), r.rolsuper
		  from pg_catalog.pg_roles r where r.rolname = current_user`).Scan(&number, &s.version, &s.super)
	if err != nil {
		return fmt.Errorf("ask PostgreSQL for its version: %w", err)
	}
	if major := number / 10000; major < minMajor || opts.Major != 0 && opts.Major != major {
		return fmt.Errorf("PostgreSQL %s %s: want %s", s.version, s.engine.origin(), wanted(opts.Major))
	}
	name := "fairclaim_owner"
	if s.kind == KindDSN {
		name += "_" + s.run
	}
	if s.owner, err = s.createRole(ctx, conn, name); err != nil {
		return err
	}
	if opts.Keep {
		return s.engine.keep(ctx)
	}
	return nil
}

// discard removes a server whose start failed, perhaps because time was up.
func discard(e engine) error {
	ctx, cancel := context.WithTimeout(context.Background(), Scaled(stopTimeout))
	defer cancel()
	return e.remove(ctx)
}

// wait polls until the server takes connections, is known to have failed, or ctx ends.
func (s *Server) wait(ctx context.Context) error {
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for {
		err := ping(ctx, s.AdminDSN())
		if err == nil {
			return nil
		}
		if failure := s.engine.failed(ctx); failure != nil {
			return failure
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for PostgreSQL %s: %w (%w)", s.engine.origin(), err, context.Cause(ctx))
		case <-poll.C:
		}
	}
}

func ping(ctx context.Context, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, Scaled(connectTimeout))
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// AdminDSN is a connection string of the superuser (of the given role on an
// existing server) for the database postgres (the given one). It holds a password.
func (s *Server) AdminDSN() string { return s.engine.dsn() }

// Kind says where the server comes from.
func (s *Server) Kind() Kind { return s.kind }

// Version is the server's version, such as "17.6".
func (s *Server) Version() string { return s.version }

// Owner is the name of the role that owns what CreateDatabase makes.
func (s *Server) Owner() string { return s.owner.Name }

// StopCommand is a line for a shell that ends the server and removes its data.
// It is empty for an existing server.
func (s *Server) StopCommand() string { return s.engine.removeCommand() }

// Kill ends every process of the server with SIGKILL and returns when they are
// gone. An existing server is not ours to kill: the error is [errors.ErrUnsupported].
func (s *Server) Kill(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Scaled(stopTimeout))
	defer cancel()
	if err := s.engine.kill(ctx); err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	return nil
}

// Restart starts a server that was killed, or ends a running one in an orderly
// way and starts it again, and waits until it answers under its old address.
// For an existing server the error is [errors.ErrUnsupported].
func (s *Server) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Scaled(startTimeout))
	defer cancel()
	if err := s.engine.interrupt(ctx); err != nil {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	if err := s.engine.start(ctx); err != nil {
		return fmt.Errorf("restart PostgreSQL: %w", err)
	}
	return s.wait(ctx)
}

// Stop ends the server and removes its data, or leaves an existing one as it
// was found. Further calls return what the first did.
func (s *Server) Stop(ctx context.Context) error {
	s.stop.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, Scaled(stopTimeout))
		defer cancel()
		if s.kind == KindDSN {
			s.stopErr = s.dropRole(ctx, s.owner.Name)
		}
		s.stopErr = errors.Join(s.stopErr, s.engine.remove(ctx))
	})
	return s.stopErr
}

// superuserDSN names the database postgres of a server of our own. Nothing
// leaves the machine, so TLS is off.
func superuserDSN(auth role, address string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(auth.Name, auth.password),
		Host:     address,
		Path:     "/postgres",
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// freePort returns a TCP port of the loopback address that nobody listens on.
// It lies below those that the system gives to outgoing connections, so that
// none of them takes it while a server that was killed is down.
func freePort() (int, error) {
	for range 100 {
		port := 15000 + rand.IntN(15000)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, errors.New("found no free TCP port")
}

// tail is the last lines of a log, each on a line of its own below what comes before.
func tail(log []byte) string {
	const most = 20
	lines := bytes.Split(bytes.TrimSpace(log), []byte("\n"))
	return ":\n\t" + string(bytes.Join(lines[max(0, len(lines)-most):], []byte("\n\t")))
}
