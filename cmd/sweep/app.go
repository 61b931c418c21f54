package main

import (
	"io"
	"log"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/sink/snippet"
)

// globalFlags are the flags of every command.
type globalFlags struct {
	DatabaseURL string `name:"database-url" placeholder:"URL" env:"SWEEP_DATABASE_URL,DATABASE_URL" help:"Where the database is: a postgres:// URL, or keyword=value pairs. What is left out of it comes from PGHOST, PGPORT, PGUSER, PGPASSWORD and the other PG variables."`
	LogLevel    string `enum:"debug,info,warn,error" default:"info" help:"Log lines of this level and above: ${enum}."`
	LogFormat   string `enum:"text,json" default:"text" help:"Format of log lines and errors: ${enum}."`
}

// progressEvery is how often a long command logs how far it is.
const progressEvery = 2 * time.Second

// app is the process around a command: its streams, its log, and the global flags.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	log            *slog.Logger // to stderr
	command        string       // "migrate up"
	databaseURL    string       // may hold a password: never printed
	jsonLog        bool
	args           []string // the command line; errors leave out connection strings in it
}

// given reports whether a flag stands on the command line.
func (a *app) given(flag string) bool {
	return slices.ContainsFunc(a.args, func(arg string) bool { return arg == flag || strings.HasPrefix(arg, flag+"=") })
}

// setUp takes over the global flags. command is the chosen command as kong
// gives it, with its arguments: "why <key>".
func (a *app) setUp(flags globalFlags, command string) {
	name, _, _ := strings.Cut(command, " <")
	a.command = name
	a.databaseURL = flags.DatabaseURL
	a.jsonLog = flags.LogFormat == "json"
	a.log = newLogger(a.stderr, flags.LogLevel, flags.LogFormat)
	log.SetFlags(0) // net/http writes to the standard log
	log.SetOutput(libraryLog{a.log})
}

// newLogger makes the logger of the process. Both formats quote control characters.
func newLogger(w io.Writer, level, format string) *slog.Logger {
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil { // kong has checked the level
		least = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: least}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// libraryLog takes the lines that libraries write to the standard library's log. They
// then have the form of all other log lines; what a server sent is cut and cleaned.
type libraryLog struct{ log *slog.Logger }

func (l libraryLog) Write(line []byte) (int, error) {
	l.log.Warn("a library reports", "text", snippet.Clean(line, 500))
	return len(line), nil
}
