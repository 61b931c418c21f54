package main

import (
	"errors"
	"slices"

	"github.com/alecthomas/kong"
)

// errShown ends the reading of a command line that asked for a text (--help,
// --version): the text has been printed, and no command runs.
var errShown = errors.New("the text that was asked for has been printed")

// showHelp prints help. kong would end the process after --help; an error from the
// printer of the help comes first, and kong.Parse returns it.
func showHelp(options kong.HelpOptions, ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return printError(err)
	}
	return errShown
}

type helpCmd struct {
	Command []string `arg:"" optional:"" help:"The command, such as run or migrate up; without it, help for sweep as a whole."`
}

func (helpCmd) Help() string {
	return `The same as --help behind the command.

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
