package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

type manCmd struct{}

func (manCmd) Help() string {
	return `Prints a manual page, made from the command line's own definitions. Needs no database.

Examples:

    sweep man > /usr/local/share/man/man1/sweep.1
    sweep man | man -l -`
}

// Run prints the page.
func (*manCmd) Run(parser *kong.Kong, a *app) error {
	version, err := readVersion()
	if err != nil {
		return err
	}
	model := parser.Model
	var b strings.Builder
	fmt.Fprintf(&b, ".TH SWEEP 1 \"\" %s \"User Commands\"\n", manQuote("sweep "+version.Version))
	b.WriteString(".SH NAME\nsweep \\- runs and operates a fair, multi\\-tenant outbox inside PostgreSQL\n")
	b.WriteString(".SH SYNOPSIS\n.B sweep\n.I command\n[\\fIflags\\fR]\n.SH DESCRIPTION\n" + manText(model.Help))
	b.WriteString(".SH \"FLAGS OF EVERY COMMAND\"\n")
	manFlags(&b, model.Flags)
	b.WriteString(".SH COMMANDS\n")
	manCommands(&b, model.Node)
	return a.printf("%s", strings.TrimRight(b.String(), "\n"))
}

// manCommands writes the commands below a node, one after the other.
func manCommands(b *strings.Builder, node *kong.Node) {
	for _, child := range node.Children {
		if child.Hidden {
			continue
		}
		if len(child.Children) > 0 {
			manCommands(b, child)
			continue
		}
		fmt.Fprintf(b, ".SS %s\n", manQuote(child.Summary()))
		b.WriteString(manText(child.Help + "\n\n" + child.Detail))
		for _, arg := range child.Positional {
			fmt.Fprintf(b, ".TP\n\\fB%s\\fR\n%s", manEscape(arg.Summary()), manText(arg.Help))
		}
		manFlags(b, child.Flags)
	}
}

func manFlags(b *strings.Builder, flags []*kong.Flag) {
	flags = slices.Clone(flags)
	slices.SortStableFunc(flags, func(x, y *kong.Flag) int { return strings.Compare(x.Name, y.Name) })
	for _, flag := range flags {
		if flag.Hidden {
			continue
		}
		text := flag.Help
		if len(flag.Envs) > 0 {
			text += " Variable: " + strings.Join(flag.Envs, ", ") + "."
		}
		fmt.Fprintf(b, ".TP\n\\fB%s\\fR\n%s", manEscape(flag.String()), manText(text))
	}
}

// manText is a help text: paragraphs, and lines that begin with four spaces, which are examples.
func manText(text string) string {
	var b strings.Builder
	example := false
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		code, isCode := strings.CutPrefix(line, "    ")
		if isCode != example && line != "" {
			b.WriteString(map[bool]string{true: ".RS 4\n.nf\n", false: ".fi\n.RE\n"}[isCode])
			example = isCode
		}
		switch {
		case line == "" && example:
		case line == "":
			b.WriteString(".PP\n")
		case isCode:
			b.WriteString(manLine(code))
		default:
			b.WriteString(manLine(line))
		}
	}
	if example {
		b.WriteString(".fi\n.RE\n")
	}
	return b.String()
}

// manLine is a line of text, which roff takes for no request.
func manLine(line string) string {
	line = manEscape(line)
	if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
		line = `\&` + line
	}
	return line + "\n"
}

func manEscape(text string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
}

// manQuote is an argument of a request.
func manQuote(text string) string {
	return `"` + strings.ReplaceAll(manEscape(text), `"`, `\(dq`) + `"`
}
