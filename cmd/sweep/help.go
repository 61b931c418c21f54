package main

import (
	"errors"
	"slices"

	"github.com/alecthomas/kong"
)

// errShown ends the parsing of a command line with --help or --version: the text has been
// printed, and no command runs.
var errShown = errors.New("the text that was asked for has been printed")

// showHelp prints the help of a command. By itself, kong ends the process after --help;
// it does not where the function that prints the help returns an error.
func showHelp(options kong.HelpOptions, ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return printError(err)
	}
	return errShown
}

type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command, for example run, or migrate up. Without it, help for sweep as a whole."`
}

func (helpCmd) Help() string {
	return `Prints what --help behind the command prints.

Examples:

    sweep help
    sweep help run
    sweep help migrate up`
}

// Run prints the help of a command.
func (c *helpCmd) Run(parser *kong.Kong) error {
	_, err := parser.Parse(append(slices.Clone(c.Command), "--help"))
	return err
}
