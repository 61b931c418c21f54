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

// confirm asks a question on a terminal, unless yes says the answer. Where there is
// no terminal to ask on, only yes will do.
func (a *app) confirm(ctx context.Context, yes bool, question string) error {
	if yes {
		return nil
	}
	if !isTerminal(a.stdin) {
		return usage("%s Say so with --yes", question)
	}
	fmt.Fprintf(a.stderr, "%s [y/N] ", visible(question))
	answer := make(chan string, 1)
	go func() { // ends with the process: a read from a terminal cannot be called off
		line, _ := bufio.NewReader(a.stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case <-ctx.Done():
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
