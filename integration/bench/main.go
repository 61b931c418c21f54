// Command bench measures what claiming costs, beside a claim that is not fair and beside
// other queues in PostgreSQL. It starts a PostgreSQL of its own, lets the contenders take
// turns in it, so that a noisy machine hurts all alike, and prints medians, p99 and
// ratios. Every experiment checks its own result and fails where it is not what was asked.
package main

import (
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
}

func experiments() []experiment {
	return []experiment{
		{"latency", "Claim latency, beside a claim that is not fair", claimLatency},
		{"flatness", "Claim latency while backlog, namespaces and what is in the way grow", claimFlatness},
		{"throughput", "Messages a second and WAL a message, from enqueue to settled", throughput},
		{"fairness", "A quiet tenant's wait beside another's flood", fairness},
		{"bloat", "Claim latency while an open transaction keeps dead rows", bloat},
		{"go", "What the Go side costs", goCost},
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	var names []string
	for _, e := range experiments() {
		names = append(names, e.name)
	}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	quick := flags.Bool("quick", false, "small sizes: under three minutes, for a look")
	only := flags.String("only", "", "comma-separated experiments: "+strings.Join(names, ", ")+" (default all)")
	jsonFile := flags.String("json", "", "also write all figures as JSON to this file; - is standard output, instead of the tables")
	markdownFile := flags.String("markdown", "", "also write a report to this file; what stands in it by hand is kept")
	pgmqSQL := flags.String("pgmq", os.Getenv("PGMQ_SQL"), "pgmq's extension SQL, a file; without it pgmq is left out (default $PGMQ_SQL)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q: there are flags only", flags.Arg(0))
	}
	chosen, err := choose(*only, names)
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
	l.report.Quick = *quick
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
	if only == "" {
		only = strings.Join(names, ",")
	}
	for name := range strings.SplitSeq(only, ",") {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("-only %q: there are %s", name, strings.Join(names, ", "))
		}
		chosen[name] = true
	}
	return chosen, nil
}
