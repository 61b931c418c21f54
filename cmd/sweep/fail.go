package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/fairclaim/fairclaim/driver"
	"github.com/fairclaim/fairclaim/driver/node"
)

// fail prints the error with which a command ended, and the error's hint, and returns the
// exit code. For nil it prints nothing.
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
	if errors.As(err, &pg) && strings.HasPrefix(pg.Code, "OB") { // raised by functions of the outbox, for a person to read
		text = strings.Replace(text, pg.Error(), pg.Message, 1)
	}
	var field *node.ConfigError
	if errors.As(err, &field) {
		text = strings.Replace(text, field.Error(), flagOf(field.Field)+" "+field.Problem, 1)
	}
	text = a.hide(text)
	switch {
	case errors.As(err, &wrong):
		code, hint = exitUsage, wrong.hint
	case errors.Is(err, driver.ErrBadArgument), field != nil, pg != nil && pg.Code == "OB001":
		code = exitUsage
	}
	if code == exitUsage && hint == "" && a.command != "" {
		hint = "sweep " + a.command + " --help shows how it is used."
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

// flagOf is the flag for a field of a node's configuration: --min-pause for MinPause.
func flagOf(field string) string {
	var b strings.Builder
	b.WriteByte('-')
	for _, r := range field {
		if unicode.IsUpper(r) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// hide replaces connection strings in the text of an error. Errors repeat wrong arguments
// and wrong values of flags, and each of them may be a connection string.
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

// explainError adds to an error of the database what a person can do about it. The
// SQLSTATE decides: the message is in the server's language.
func (a *app) explainError(err error) error {
	var pg *pgconn.PgError
	var hinted *hintError
	var wrong *usageError
	if !errors.As(err, &pg) || errors.As(err, &hinted) || errors.As(err, &wrong) {
		return err
	}
	switch pg.Code {
	case "42501": // insufficient_privilege
		return withHint(err, "%s", a.missingRight())
	case "3F000", "42883", "42P01", "42703": // no such schema, function, table, column
		return withHint(err, `The schema outbox is not of the version that this sweep needs: see "sweep migrate version".`)
	case "25006": // read_only_sql_transaction
		return withHint(err, "This server takes no changes: it is a standby, or default_transaction_read_only is on. Connect to the primary; to overrule the setting for one command: PGOPTIONS='-c default_transaction_read_only=off'.")
	}
	if pg.Hint != "" {
		return withHint(err, "%s", pg.Hint)
	}
	return err
}

// missingRight says who can grant the right that this command needs.
func (a *app) missingRight() string {
	command, _, _ := strings.Cut(a.command, " ")
	grant := "grant_operator"
	switch command {
	case "migrate":
		return "Connect as the role that owns the schema outbox. To install the schema, connect as the owner of the database, or let the owner run: grant create on database ... to this role."
	case "enqueue":
		grant = "grant_producer"
	case "once", "run":
		grant = "grant_worker"
	}
	return fmt.Sprintf("The owner of the schema outbox can grant the right, and must do so again after an upgrade: select outbox.%s('role').", grant)
}
