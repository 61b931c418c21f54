package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/snippet"
	"github.com/fairclaim/fairclaim/driver"
)

// app is what a command works with.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	log            *slog.Logger // to stderr
	command        string       // "migrate up"
	databaseURL    string       // may hold a password: never printed
	jsonLog        bool
	args           []string // of the command line: connection strings among them are not printed
}

// setUp takes over what the command line says; command is as kong gives it, with the
// arguments: "why <key>".
func (a *app) setUp(line *commands, command string) {
	name, _, _ := strings.Cut(command, " <")
	a.command = name
	a.databaseURL = line.DatabaseURL
	a.jsonLog = line.LogFormat == "json"
	a.log = newLogger(a.stderr, line.LogLevel, line.LogFormat)
	log.SetFlags(0) // net/http writes to the log of the process
	log.SetOutput(libraryLog{a.log})
}

// newLogger makes the logger of a process. Both formats quote control characters.
func newLogger(w io.Writer, level, format string) *slog.Logger {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil { // the command line allows no other
		least = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: least}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// libraryLog takes lines that libraries write past our log: it has one form, and what a
// server sends is cut and cleaned.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Write(line []byte) (int, error) {
	l.log.Warn("a library reports", "text", snippet.Clean(line, 500))
	return len(line), nil
}

// hide takes what looks like a connection string out of an error: one that was given as
// an argument, or for another flag's value, would be repeated as wrong.
func (a *app) hide(text string) string {
	for _, arg := range append([]string{a.databaseURL}, a.args...) {
		_, value, _ := strings.Cut(arg, "=")
		for _, s := range []string{arg, value} {
			if lower := strings.ToLower(s); !strings.Contains(lower, "password") && !(strings.Contains(lower, "://") && strings.Contains(lower, "@")) {
				continue
			}
			for _, form := range []string{s, strings.Trim(strconv.Quote(s), `"`), visible(s), strings.TrimSpace(s)} {
				text = strings.ReplaceAll(text, form, "[hidden]")
			}
		}
	}
	return text
}

// hintError is an error with what to do about it.
type hintError struct {
	err  error
	hint string
}

func (e *hintError) Error() string { return e.err.Error() }
func (e *hintError) Unwrap() error { return e.err }

func withHint(err error, format string, args ...any) error {
	return &hintError{err: err, hint: fmt.Sprintf(format, args...)}
}

// fail prints an error, nil too, which prints nothing, and gives the exit code.
func (a *app) fail(err error) int {
	if err == nil {
		return exitDone
	}
	err = a.explainError(err)
	code, hint := exitFailed, ""
	var wrong *usageError
	var hinted *hintError
	if errors.As(err, &hinted) {
		hint = hinted.hint
	}
	var pg *pgconn.PgError
	text := err.Error()
	if errors.As(err, &pg) && strings.HasPrefix(pg.Code, "OB") { // raised for a person to read
		text = strings.Replace(text, pg.Error(), pg.Message, 1)
	}
	text = a.hide(text)
	switch {
	case errors.As(err, &wrong):
		code, hint = exitUsage, wrong.hint
	case errors.Is(err, driver.ErrBadArgument), pg != nil && pg.Code == "OB001":
		code = exitUsage
	}
	if a.jsonLog {
		if hint == "" {
			a.log.Error(text)
		} else {
			a.log.Error(text, "hint", hint)
		}
		return code
	}
	fmt.Fprintf(a.stderr, "sweep: %s\n", visible(text))
	if hint != "" {
		fmt.Fprintf(a.stderr, "  %s\n", visible(hint))
	}
	return code
}
