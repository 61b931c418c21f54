package main

import (
	"context"
	"fmt"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/monitor"
	"github.com/fairclaim/fairclaim/cmd/sweep/internal/ui"
)

type uiCmd struct {
	Listen  string `default:"127.0.0.1:8080" placeholder:"HOST:PORT" env:"SWEEP_UI_LISTEN" help:"Serve the pages at this address (default ${default})."`
	uiFlags `embed:""`
}

// uiFlags are the flags of the pages that ui and run share. On run each begins with ui-.
type uiFlags struct {
	Users   string `placeholder:"FILE" env:"SWEEP_UI_USERS" help:"Ask for a name and a password of this file, which 'htpasswd -B' writes. Without it the pages listen on this machine only, and ask nobody."`
	Actions bool   `env:"SWEEP_UI_ACTIONS" help:"Let the pages change things: pause, resume, hold, lift, set quotas, redrive, cancel, retry. Without it they only show."`
}

func (uiCmd) Help() string {
	return `Serves pages that show the outbox until it is told to stop: which tenants wait and why, what has failed, where one message stands, which nodes claim. The pages need no script, and ask the database a bounded amount for each request.

They read and act as the role that sweep connects as: an operator (outbox.grant_operator). What that role may not do, the pages cannot. Each action is logged with its user. Beyond this machine put a proxy with TLS in front: passwords go over the wire as they are.

Examples:

    sweep ui                                        # http://127.0.0.1:8080, only shows
    sweep ui --actions
    htpasswd -cB users.txt alice
    sweep ui --listen 0.0.0.0:8080 --users users.txt --actions`
}

// Validate refuses what is no address.
func (c *uiCmd) Validate() error {
	if err := monitor.CheckAddress(c.Listen); err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	return nil
}

// Run serves the pages until a signal.
func (c *uiCmd) Run(ctx context.Context, a *app) error {
	stop, err := c.serve(ctx, a, "", c.Listen, uiNames{listen: "--listen", users: "--users"})
	if err != nil {
		return err
	}
	defer stop()
	<-ctx.Done()
	return nil
}

// uiNames are the names of the flags on a command line.
type uiNames struct{ listen, users string }

// uiConnections is how many connections the pages use at most.
const uiConnections = 6

// serve checks the flags, listens, connects, and serves the pages until the function that it returns
// is called.
func (f *uiFlags) serve(ctx context.Context, a *app, node, address string, names uiNames) (stop func(), err error) {
	var users *ui.Users
	if f.Users != "" {
		if users, err = ui.ReadUsers(f.Users); err != nil {
			return nil, &usageError{err: fmt.Errorf("%s: %w", names.users, err), hint: "To make the file: htpasswd -cB FILE NAME"}
		}
	}
	listener, err := monitor.Listen(ctx, address)
	if err != nil {
		return nil, withHint(fmt.Errorf("%s %s: %w", names.listen, address, err),
			"Another process may use the port: give another one, or port 0 for any that is free.")
	}
	local := monitor.Local(listener)
	if !local && users == nil {
		_ = listener.Close()
		return nil, &usageError{
			err:  fmt.Errorf("%s %s: other machines can reach this address, and nobody would be asked for a password", names.listen, address),
			hint: fmt.Sprintf("Give %s FILE, or listen on 127.0.0.1.", names.users),
		}
	}
	pool, err := a.openPool(ctx, node, uiConnections)
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	info, err := readVersion()
	if err != nil {
		closePool(pool)
		_ = listener.Close()
		return nil, err
	}
	server := ui.Serve(listener, ui.Options{
		Pool: pool, Read: readOnly, Write: toWrite, Log: a.log, Users: users, Actions: f.Actions, Version: info.Version,
	})
	url := fmt.Sprintf("http://%s/", listener.Addr())
	a.log.Info("serving pages", "event", "ui_listening", "url", url, "actions", f.Actions, "users", users != nil)
	if !local {
		a.log.Warn("the pages are served without TLS: passwords can be read on the way, unless a proxy in front has TLS", "event", "ui_plain")
	}
	return func() { server.Close(); closePool(pool) }, nil
}
