package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"
)

// confirm lets a person think again about what a command would do, unless yes says
// that it is meant. Where there is no terminal to ask on, only yes will do.
func (a *app) confirm(ctx context.Context, yes bool, what string) error {
	if yes {
		return nil
	}
	if !isTerminal(a.stdin) {
		return usage("this would %s: confirm it with --yes", what)
	}
	fmt.Fprintf(a.stderr, "This will %s. Go on? [y/N] ", visible(what))
	answer := make(chan string, 1)
	go func() { // ends with the process: a read from a terminal cannot be called off
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.stderr)
		return context.Cause(ctx)
	case line := <-answer:
		if line == "y" || line == "yes" {
			return nil
		}
		return errors.New("not confirmed, nothing was done")
	}
}

func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
