package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// commands is the command line. Each command has a file of its own and a method
// Run(context.Context, *app) error. Only main.go uses this file: what commands share is
// in files that they use.
type commands struct {
	globalFlags
	ShowVersion versionFlag `name:"version" short:"V" env:"-" help:"Show the version of this program."`

	Migrate    migrateCmd    `cmd:"" help:"Install the schema, upgrade it, or take it back."`
	Enqueue    enqueueCmd    `cmd:"" help:"Enqueue messages from NDJSON: one message a line."`
	Once       onceCmd       `cmd:"" help:"Deliver the messages that are due, and end: for cron."`
	Run        runCmd        `cmd:"" help:"Claim and deliver messages until told to stop."`
	Status     statusCmd     `cmd:"" help:"Show the backlog, the nodes, what is paused or held, and what keeps vacuum from removing dead rows."`
	Nodes      nodesCmd      `cmd:"" help:"Show which nodes are alive, and which shards each owns."`
	Explain    explainCmd    `cmd:"" help:"Show what a claim would take now, and why."`
	Why        whyCmd        `cmd:"" help:"Show the state of one message, and what holds it back."`
	Check      checkCmd      `cmd:"" help:"Audit the outbox: every guarantee that SQL can check."`
	Quota      quotaCmd      `cmd:"" help:"Show or set the quota of a namespace."`
	Pause      pauseCmd      `cmd:"" help:"Pause a namespace, a route, or everything."`
	Resume     resumeCmd     `cmd:"" help:"End a pause."`
	Holds      holdsCmd      `cmd:"" help:"Show destinations that are held because they fail."`
	Hold       holdCmd       `cmd:"" help:"Hold a destination: a route of a namespace, or of all."`
	Lift       liftCmd       `cmd:"" help:"Lift the hold of a destination."`
	Shared     sharedCmd     `cmd:"" help:"Say whether namespaces share the endpoint of a route, which is then held for all."`
	Cancel     cancelCmd     `cmd:"" help:"Cancel messages that are pending or claimed."`
	Failed     failedCmd     `cmd:"" help:"List dead letters, or count them by what went wrong."`
	Redrive    redriveCmd    `cmd:"" help:"Make failed or cancelled messages pending again."`
	Retry      retryCmd      `cmd:"" help:"Make messages due now that wait for their backoff or their delay."`
	Prune      pruneCmd      `cmd:"" help:"Delete messages that were settled long ago."`
	Purge      purgeCmd      `cmd:"" help:"Delete all there is of a namespace."`
	UI         uiCmd         `cmd:"" name:"ui" help:"Serve pages that show the outbox: who waits, and why."`
	Completion completionCmd `cmd:"" help:"Print a script that makes a shell complete commands and flags."`
	Version    versionCmd    `cmd:"" help:"Show the version of this program."`
	Man        manCmd        `cmd:"" help:"Print a manual page."`
	Help       helpCmd       `cmd:"" help:"Show help for a command."`
}

const description = `Runs and operates a fair, multi-tenant outbox inside PostgreSQL.

A namespace is a tenant. A route is one task queue of one namespace. A node is a process that claims messages and delivers them. A message is pending, then claimed, and settled in the end: done, failed or cancelled.

A flag can also be given as the environment variable in parentheses; the flag wins.

The exit code is 0 when the work is done, 1 when it failed or was cut short, and 2 when the command line or an argument is wrong; nothing was done then.`

// run is the whole program, and returns its exit code. ctx ends when the program is asked
// to stop. The environment is that of the process: pgx reads the PG variables by itself.
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
		nodeVars(),
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

// asUsage makes a usageError of kong's error about the command line. Its hint names the
// help of the command that was meant. Other errors stay as they are.
func asUsage(parser *kong.Kong, err error) error {
	var parseErr *kong.ParseError
	if !errors.As(err, &parseErr) || errors.Is(err, errPrint) {
		return err
	}
	if m := negativeFlag.FindStringSubmatch(err.Error()); m != nil {
		err = fmt.Errorf("unexpected argument %s: no argument takes a negative number", m[1])
	}
	if m := negativeValue.FindStringSubmatch(err.Error()); m != nil {
		err = fmt.Errorf("%s must not be negative, and is %s", m[1], m[2])
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

// negativeFlag is kong's error for a negative number in the place of an argument.
var negativeFlag = regexp.MustCompile(`^unknown flag (-[0-9][0-9.]*)\b`)

// negativeValue is kong's error for a negative number behind a flag, which it takes for another flag.
var negativeValue = regexp.MustCompile(`^(--[a-z-]+): expected .* value but got "(-[0-9.][^"]*)" \(short flag\)`)

// unknownCommand rewords kong's "unexpected argument" for a word in the place of a
// command. For the name of a subcommand it suggests the whole: "migrate up" for "up".
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
