// Command bench measures what claiming costs, beside a claim that is not fair and beside
// other queues in PostgreSQL. It starts a PostgreSQL of its own, lets the contenders take
// turns in it, so that a noisy machine hurts all alike, and prints medians, p99 and
// ratios. Every experiment checks its own result and fails where it is not what was asked.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fairclaim/fairclaim/integration/pgtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return
		}
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// experiment is one part of the bench.
type experiment struct {
	name  string
	title string
	run   func(context.Context, *lab) error
	alone bool // it runs only where -only names it
}

func experiments() []experiment {
	return []experiment{
		{name: "latency", title: "Claim latency, beside a claim that is not fair", run: claimLatency},
		{name: "flatness", title: "Claim latency while backlog, namespaces and what is in the way grow", run: claimFlatness},
		{name: "throughput", title: "Messages a second and WAL a message, from enqueue to settled", run: throughput},
		{name: "fairness", title: "A quiet tenant's wait beside another's flood", run: fairness},
		{name: "bloat", title: "Claim latency while an open transaction keeps dead rows", run: bloat},
		{name: "go", title: "What the Go side costs", run: goCost},
		{name: "rivals", title: "Fair reads from a backlog: claim_fair, pgmq's, and two written by hand", run: rivals, alone: true},
		{name: "steady", title: "An outbox in service: enqueue, deliver, settle and prune side by side", run: steady, alone: true},
		{name: "settles", title: "What a settle costs a message", run: settles, alone: true},
		{name: "enqueue", title: "What enqueue costs beside the plain inserts that it stands for", run: enqueueCost},
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	var names, usual []string
	for _, e := range experiments() {
		names = append(names, e.name)
		if !e.alone {
			usual = append(usual, e.name)
		}
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", false, "small sizes: under three minutes, for a look")
	only := flags.String("only", "", "comma-separated experiments: "+strings.Join(names, ", ")+" (default "+strings.Join(usual, ",")+")")
	jsonFile := flags.String("json", "", "also write all figures as JSON to this file; - is standard output, instead of the tables")
	markdownFile := flags.String("markdown", "", "also write a report to this file; what stands in it by hand is kept")
	pgmqSQL := flags.String("pgmq", os.Getenv("PGMQ_SQL"), "pgmq's extension SQL, a file; without it pgmq is left out (default $PGMQ_SQL)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q: there are flags only", flags.Arg(0))
	}
	chosen, err := choose(cmp.Or(*only, strings.Join(usual, ",")), names)
	if err != nil {
		return err
	}
	size := full()
	if *quick {
		size = small()
	}
	tables := stdout
	if *jsonFile == "-" {
		tables = io.Discard
	}

	l, err := openLab(ctx, size, pgtest.Options{Log: stderr}, *pgmqSQL, stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close(context.WithoutCancel(ctx))) }()
	l.report.Quick, l.report.Only = *quick, *only
	l.report.print(tables)
	for _, e := range experiments() {
		if !chosen[e.name] {
			continue
		}
		if err := l.conduct(ctx, e); err != nil {
			return err
		}
		l.report.printSection(tables, e.name)
	}
	l.report.Took = time.Since(l.report.Began).Round(time.Second).String()
	fmt.Fprintf(tables, "\n%s\n", l.report.closing())
	if *jsonFile != "" {
		if err := l.report.writeJSON(*jsonFile, stdout); err != nil {
			return err
		}
	}
	if *markdownFile != "" {
		return l.report.writeMarkdown(*markdownFile)
	}
	return nil
}

func choose(only string, names []string) (map[string]bool, error) {
	chosen := map[string]bool{}
	for name := range strings.SplitSeq(only, ",") {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("-only %q: there are %s", name, strings.Join(names, ", "))
		}
		chosen[name] = true
	}
	return chosen, nil
}
