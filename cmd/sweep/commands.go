package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// commands is the command line. Each command stands in a file of its own and has a
// method Run(context.Context, *app) error.
type commands struct {
	DatabaseURL string `name:"database-url" placeholder:"URL" env:"SWEEP_DATABASE_URL,DATABASE_URL" help:"postgres:// URL or keyword=value pairs. What it leaves out comes from PGHOST, PGPORT, PGUSER, PGPASSWORD and the other PG variables."`
	LogLevel    string `enum:"debug,info,warn,error" default:"info" help:"Least level of what is logged: ${enum}."`
	LogFormat   string `enum:"text,json" default:"text" help:"Form of logs and errors: ${enum}."`

	Migrate migrateCmd `cmd:"" help:"Install the schema, bring it up to date, or take it back."`
	Enqueue enqueueCmd `cmd:"" help:"Enqueue messages from NDJSON."`
	Once    onceCmd    `cmd:"" help:"Deliver what is due, and end: for cron."`
	Run     runCmd     `cmd:"" help:"Claim and deliver until told to stop."`
	Status  statusCmd  `cmd:"" help:"Show backlog, nodes, what is paused and what keeps dead rows alive."`
	Nodes   nodesCmd   `cmd:"" help:"Show which nodes live, and which shards each owns."`
	Explain explainCmd `cmd:"" help:"Show what a claim would do now, and why."`
	Why     whyCmd     `cmd:"" help:"Show where one message stands, and what holds it back."`
	Check   checkCmd   `cmd:"" help:"Audit the outbox: every guarantee that SQL can check."`
	Quota   quotaCmd   `cmd:"" help:"Show or set a namespace's quota."`
	Pause   pauseCmd   `cmd:"" help:"Hold a namespace, a route, or everything."`
	Resume  resumeCmd  `cmd:"" help:"Take a pause back."`
	Cancel  cancelCmd  `cmd:"" help:"Cancel messages."`
	Redrive redriveCmd `cmd:"" help:"Bring failed messages back."`
	Prune   pruneCmd   `cmd:"" help:"Delete old settled messages."`
	Version versionCmd `cmd:"" help:"Show the version of this program."`
}

const description = `Runs and looks after a fair, multi-tenant outbox inside PostgreSQL.

Every flag can be given as the environment variable in parentheses; the flag wins.`

const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// run is the whole program. ctx ends when it is asked to stop. Environment variables
// are those of the process: PG* are read deep inside of pgx.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var line commands
	app := &app{args: args, stdin: stdin, stdout: stdout, stderr: stderr}
	parser, err := kong.New(&line,
		kong.Name("sweep"),
		kong.Description(description),
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(helpShown(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.DefaultEnvars("SWEEP"),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(app),
	)
	if err != nil {
		return app.fail(fmt.Errorf("read the command line: %w", err))
	}
	parsed, err := parse(parser, args)
	if err != nil {
		return app.fail(asUsage(parser, err))
	}
	if parsed == nil { // help was shown
		return exitDone
	}
	app.setUp(&line, parsed.Command())
	return app.fail(parsed.Run())
}

// helpShown is what kong's wish to exit is turned into: after --help there is no
// command to run.
type helpShown int

func parse(parser *kong.Kong, args []string) (parsed *kong.Context, err error) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(helpShown); !ok {
				panic(r)
			}
			parsed, err = nil, nil
		}
	}()
	return parser.Parse(args)
}

// usageError is an error of the command line, not of the work.
type usageError struct {
	err  error
	hint string
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usage(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

func asUsage(parser *kong.Kong, err error) error {
	help := parser.Model.Name
	var parseErr *kong.ParseError
	if errors.As(err, &parseErr) {
		if node := parseErr.Context.Selected(); node != nil {
			help = strings.TrimSpace(node.Path())
			if !strings.HasPrefix(help, parser.Model.Name) {
				help = parser.Model.Name + " " + help
			}
		}
	}
	return &usageError{err: err, hint: fmt.Sprintf("%s --help shows how it is used.", help)}
}
