package main

import (
	"errors"
	"fmt"
)

// The exit codes of every command.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// usageError says that the command line or an argument is wrong. The exit code is 2.
type usageError struct {
	err  error
	hint string // what to do about the error; may be empty
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// errPrint is an error of standard output: a full disk, a closed pipe.
var errPrint = errors.New("print the result")

func printError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errPrint, err)
}

func usage(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

// hintError is an error with a hint, which says what to do about the error.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() }
func (e *hintError) Unwrap() error { return e.err }

func withHint(err error, format string, args ...any) error {
	return &hintError{err: err, hint: fmt.Sprintf(format, args...)}
}
