package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// commands is the command line. Each command stands in a file of its own and has a
// method Run(context.Context, *app) error. No other file names this one's identifiers
// but main.go: what commands share stands in files below them.
type commands struct {
	globalFlags
	ShowVersion versionFlag `name:"version" short:"V" env:"-" help:"Show the version of this program."`

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
	Help    helpCmd    `cmd:"" help:"Show help for a command."`
}

const description = `Runs and looks after a fair, multi-tenant outbox inside PostgreSQL.

Every flag can be given as the environment variable in parentheses; the flag wins.

The exit code is 0 when the work is done, 1 when it failed or was cut short, and 2 when the command line or an argument is wrong; nothing was done then.`

// run is the whole program. ctx ends when it is asked to stop. Environment variables
// are those of the process: PG* are read deep inside of pgx.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var line commands
	app := &app{args: args, stdin: stdin, stdout: stdout, stderr: stderr}
	parser, err := kong.New(&line,
		kong.Name("sweep"),
		kong.Description(description),
		kong.Writers(stdout, stderr),
		kong.Help(showHelp),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.DefaultEnvars("SWEEP"),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(app),
	)
	if err != nil {
		return app.fail(fmt.Errorf("read the command line: %w", err))
	}
	parsed, err := parser.Parse(args)
	if err == nil {
		app.setUp(line.globalFlags, parsed.Command())
		err = parsed.Run()
	}
	if errors.Is(err, errShown) {
		return exitDone
	}
	return app.fail(asUsage(parser, err))
}

// asUsage turns an error of kong about the command line into one of usage, with a hint
// at the help of the command that was meant. Other errors stay as they are.
func asUsage(parser *kong.Kong, err error) error {
	var parseErr *kong.ParseError
	if !errors.As(err, &parseErr) || errors.Is(err, errPrint) {
		return err
	}
	app := parser.Model
	node := parseErr.Context.Selected()
	if node == nil {
		node = app.Node
	}
	help := app.Name
	if node != app.Node {
		help = node.FullPath()
	}
	if len(node.Children) > 0 {
		return &usageError{err: unknownCommand(app, err), hint: help + " --help lists the commands."}
	}
	return &usageError{err: err, hint: help + " --help shows how it is used."}
}

// unknownCommand says of a word that is no command what kong says of it as an argument,
// and knows the words that are commands behind another one: "up" is "migrate up".
func unknownCommand(app *kong.Application, err error) error {
	rest, ok := strings.CutPrefix(err.Error(), "unexpected argument ")
	if !ok {
		return err
	}
	word, _, _ := strings.Cut(rest, ", did you mean ")
	for _, command := range app.Children {
		if slices.ContainsFunc(command.Children, func(c *kong.Node) bool { return c.Name == word }) {
			return fmt.Errorf("unknown command %s, did you mean %q?", word, command.Name+" "+word)
		}
	}
	return errors.New("unknown command " + rest)
}
