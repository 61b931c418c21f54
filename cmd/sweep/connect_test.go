package main

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
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
		refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
		if code := a.fail(connectError(context.Background(), c, refused)); code != exitFailed {
			t.Fatalf("%q: exit %d", a.databaseURL, code)
		}
		if strings.Contains(stderr.String(), secret) {
			t.Fatalf("%q: %s", a.databaseURL, &stderr)
		}
	})
}
