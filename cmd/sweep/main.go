// Command sweep runs and looks after an outbox: it installs the schema, enqueues,
// claims and delivers messages, and shows and steers what the claim does.
//
// Results go to standard output, logs and errors to standard error. The exit code is
// 0 when the work is done, 1 when it failed, 2 when the command line is wrong.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks to stop. A second one ends the process at once, unless
	// the command itself listens for it.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
