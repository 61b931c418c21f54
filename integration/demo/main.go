// Command demo shows what fair claiming is for: one tenant enqueues 50,000 messages at
// once while twenty others trickle, and two nodes share the work, first with a plain
// first-come claim and then with outbox.claim_fair, where the endpoint of one more tenant dies for a
// while. It starts a throw-away PostgreSQL and
// removes it again.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, context.Canceled) {
			err = errors.New("interrupted; everything is cleaned up")
		}
		fmt.Fprintln(os.Stderr, "demo:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout *os.File, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	keep := flags.Bool("keep", false, "leave the database up at the end and say how to look at it")
	length := flags.Duration("phase", 10*time.Second, "how long each of the two phases takes")
	burst := flags.Int("burst", 50_000, "messages of the bursty tenant")
	if err := flags.Parse(args); err != nil {
		return err
	}

	server, err := pgtest.Start(ctx, pgtest.Options{Durable: true, Keep: *keep, Log: stderr})
	if err != nil {
		return err
	}
	kept := false
	defer func() {
		if !kept {
			stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
			defer cancel()
			err = errors.Join(err, server.Stop(stopping))
		}
	}()

	screen := newScreen(stdout, term.IsTerminal(int(stdout.Fd())))
	var results [2]result
	var db pgtest.Database
	for i, p := range []phase{
		{title: "1 of 2: first come, first served", database: "first_come", replace: firstCome},
		{title: "2 of 2: outbox.claim_fair", database: "fairclaim", outage: true},
	} {
		p.length, p.burst = *length, *burst
		db, err = server.CreateDatabase(ctx, p.database, "")
		if err != nil {
			return err
		}
		results[i], err = p.run(ctx, db.DSN, screen)
		if err != nil {
			return fmt.Errorf("phase %s: %w", p.title, err)
		}
		if !*keep || i == 0 {
			if err := server.DropDatabase(ctx, p.database); err != nil {
				return err
			}
		}
	}
	screen.summary(results[0], results[1])
	screen.outage(results[1])
	if *keep {
		kept = true
		url, stop, err := servePages(ctx, db.DSN)
		if err != nil {
			fmt.Fprintln(stderr, "demo: no pages:", err)
			stop = "true"
		}
		fmt.Fprintf(stdout, "\nThe database of phase 2 is up. Look at it with psql:\n\n  psql '%s' -c 'select * from outbox.namespaces'\n\nStop it:\n\n  %s; %s\n",
			db.DSN, stop, server.StopCommand())
		if url != "" {
			fmt.Fprintf(stdout, "\nA node delivers slowly what is left. Who waits, and why:\n\n  %s\n", url)
		}
	}
	return nil
}
