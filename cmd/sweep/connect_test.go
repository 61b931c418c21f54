package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// No connection string, however wrong, gets its password into an error: neither when it
// cannot be read nor when nobody answers.
func FuzzDSN(f *testing.F) {
	const secret = "hunter2"
	for _, name := range os.Environ() { // what libpq's variables say is none of the input's doing
		if name, _, _ := strings.Cut(name, "="); strings.HasPrefix(name, "PG") {
			f.Setenv(name, "")
		}
	}
	f.Setenv("HOME", f.TempDir())
	for _, seed := range [][2]string{
		{"postgres://u:", "@h:5432/d"},
		{"postgres://u:", "#@h/d"},
		{"postgres://u:", "%zz@h/d"},
		{"postgres://u:x", "@h:port/d?sslmode=wrong"},
		{"postgres://u@h/d?password=", "&sslrootcert=/no/such/file"},
		{"host=h password=", ""},
		{"host=h password='a \\'", "' port=wrong"},
		{"password = ", " ="},
		{"u:", "@localhost/d"},
		{"host=h sslmode=verify-ca sslrootcert='/no/such/file password=", "'"},
		{"postgres://u:", "@[::1%25]:1,h2:2/d"},
		{"service=x password=", ""},
		{"postgresql://u:p@h/d?passfile=", ""},
		{" \"postgres://u:", "@h/d?sslmode=disable\"\n"},
		{"  postgres://u:", "@h/d?sslmode=disable"},
		{"postgres://u:a@", "@h/d"},
		{"postgres://u:a/", "@h/d"},
		{"postgres://u:1?", "@h/d"},
		{"postgres://u:12#", "@h/d"},
		{"postgres://u:a\n", "@h/d"},
		{"host=h password=a ", "=b"},
		{"host=h password=a host=", ""},
		{"DATABASE_URL=postgres://u:", "@h/d"},
		{"Host=h;Password=", ";Database=d"},
		{"jdbc:postgresql://h/d?password=", ""},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		var stderr bytes.Buffer
		a := &app{stderr: &stderr, databaseURL: before + secret + after, log: slog.New(slog.DiscardHandler)}
		config, err := a.poolConfig("n1")
		if err != nil {
			if code := a.fail(err); code != exitUsage {
				t.Fatalf("%q: exit %d", a.databaseURL, code)
			}
			if strings.Contains(stderr.String(), secret) {
				t.Fatalf("%q: %s", a.databaseURL, &stderr)
			}
			return
		}
		c := config.ConnConfig
		for _, public := range []string{c.User, c.Database, addresses(c)} {
			if strings.Contains(public, secret) {
				return
			}
		}
		// A server that does not know a parameter says which.
		for name, value := range c.RuntimeParams {
			unknown := &pgconn.PgError{Code: "42704", Message: `unrecognized configuration parameter "` + name + `" with "` + value + `"`}
			if a.fail(connectError(context.Background(), c, unknown)); strings.Contains(stderr.String(), secret) {
				t.Fatalf("%q: %s", a.databaseURL, &stderr)
			}
		}
		refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		if code := a.fail(connectError(context.Background(), c, refused)); code != exitFailed {
			t.Fatalf("%q: exit %d", a.databaseURL, code)
		}
		if strings.Contains(stderr.String(), secret) {
			t.Fatalf("%q: %s", a.databaseURL, &stderr)
		}
	})
}

// A password pasted into a URL as it is, whatever characters it has, comes into no error:
// no part of it is taken for a host, a database or a parameter.
func FuzzPastedPassword(f *testing.F) {
	const secret = "hunter2"
	for _, seed := range [][2]string{{"", ""}, {"a@", "@b"}, {"a/", ""}, {"12/", "/"}, {"1?", "=b"}, {"1#", "#"}, {"%", "%4"}, {"a:", ":"}, {"[", "]"}, {"\n", "\t"}, {"'", "\""}, {"a b=", " c"}, {"\\", ";"}} {
		f.Add(seed[0], seed[1], " \"", "\"\n")
	}
	f.Fuzz(func(t *testing.T, before, after, left, right string) {
		if strings.Trim(left+right, " \t\n\"'") != "" {
			return
		}
		var stderr bytes.Buffer
		a := &app{stderr: &stderr, databaseURL: left + "postgres://u:" + before + secret + after + "@h/d?sslmode=disable" + right, log: slog.New(slog.DiscardHandler)}
		config, err := a.poolConfig("")
		if err != nil {
			a.fail(err)
		} else {
			a.fail(connectError(context.Background(), config.ConnConfig, &pgconn.PgError{Code: "42704", Message: fmt.Sprint(config.ConnConfig.RuntimeParams)}))
		}
		if strings.Contains(stderr.String(), secret) {
			t.Fatalf("%q: %s", a.databaseURL, &stderr)
		}
	})
}

// Parameters of libpq and of other programs do what they say, are left out where they mean
// nothing here, or are refused by name.
func TestKnownParameters(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for _, c := range []struct{ params, refusedWith string }{
		{"keepalives=1&keepalives_idle=30&keepalives_interval=5&keepalives_count=3&tcp_user_timeout=9000", ""},
		{"gssencmode=disable&channel_binding=prefer&target_session_attrs=read-write&sslmode=require&ssl_min_protocol_version=TLSv1.3", ""},
		{"schema=public&pgbouncer=true&connection_limit=5&pool_timeout=10&socket_timeout=3&statement_cache_size=0", ""},
		{"pool_max_conns=3&load_balance_hosts=random&sslcompression=0&fallback_application_name=x&supa=base-pooler.x", ""},
		{"gssencmode=require", "gssencmode"},
		{"hostaddr=10.0.0.1", "hostaddr"},
		{"sslaccept=accept_invalid_certs", "sslaccept"},
		{"keepalives_idle=soon", "keepalives_idle"},
		{"ssl_min_protocol_version=SSLv3", "ssl_min_protocol_version"},
		{"sslmode=no-verify", "verify-full"},
		{"statement_timeout=5000", ""},
	} {
		for _, dsn := range []string{"postgres://u:p@h/d?" + c.params, "host=h user=u " + strings.ReplaceAll(c.params, "&", " ")} {
			var stderr bytes.Buffer
			a := &app{stderr: &stderr, databaseURL: dsn}
			config, err := a.poolConfig("")
			if (err != nil) != (c.refusedWith != "") {
				t.Errorf("%s: %v", dsn, err)
			}
			if a.fail(err); !strings.Contains(stderr.String(), c.refusedWith) {
				t.Errorf("%s: %s", dsn, &stderr)
			}
			if err != nil {
				continue
			}
			for name := range config.ConnConfig.RuntimeParams {
				switch name {
				case "application_name", "client_encoding", "statement_timeout":
				default:
					t.Errorf("%s: the server is sent %s", dsn, name)
				}
			}
		}
	}
}

// The password file is read again for each new connection.
func TestPasswordFileIsReadAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pgpass")
	t.Setenv("PGPASSFILE", file)
	t.Setenv("PGPASSWORD", "")
	if err := os.WriteFile(file, []byte("h:5432:d:u:first\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := (&app{databaseURL: "postgres://u@h/d"}).poolConfig("")
	if err != nil || config.ConnConfig.Password != "first" {
		t.Fatalf("password %q, %v", config.ConnConfig.Password, err)
	}
	if err := os.WriteFile(file, []byte("h:5432:d:u:second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	next := config.ConnConfig.Copy()
	if err := config.BeforeConnect(t.Context(), next); err != nil || next.Password != "second" {
		t.Errorf("the next connection has password %q, %v", next.Password, err)
	}
}
