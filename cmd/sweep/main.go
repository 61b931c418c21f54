// Command sweep runs and operates an outbox: it installs the schema, enqueues messages,
// claims and delivers them, and shows and changes what the next claims will take.
//
// Results go to standard output, log lines and errors to standard error. The exit code is
// 0 when the work is done, 1 when it failed or was cut short, 2 when the command line or
// an argument is wrong.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks the command to stop. A second signal ends the process at
	// once, unless the command listens for signals itself (node.go).
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
