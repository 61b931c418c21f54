// Package ui is pages that show an outbox: which tenant waits, and why.
//
//	ui.go       Options, Server
//	serve.go    what every request goes through: headers, hosts, passwords, limits
//	users.go    the file of users and passwords
//	render.go   templates, and how they show times, counts and what strangers wrote
//	data.go     transactions, and what every page reads
//	survey.go   survey, which looks at all tenants, a few at a time, in the background
//	tenants.go  Tenants: who waits longest; a tenant: why
//	failed.go   the dead letters, grouped
//	message.go  a message
//	nodes.go    nodes and shards, and the audit
//	actions.go  what changes something
//	jobs.go     redrives that go on in the background
//
// A request asks the database a bounded amount, whatever the number of tenants and messages. Every
// page works without its script, which only fetches the page again and exchanges the parts that
// say so. What changes something is a POST that ends in a redirect.
package ui

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Options are what the pages need.
type Options struct {
	Pool        *pgxpool.Pool // a few connections; its role is what the database lets the pages do
	Read, Write pgx.TxOptions // how transactions begin
	Log         *slog.Logger
	Users       *Users // who may come in; nil: whoever reaches the address, which must be of this machine
	Actions     bool   // false: the pages only show
	Version     string
}

// Limits of the server.
const (
	requestTimeout = 10 * time.Second // for a request to arrive
	answerTimeout  = 60 * time.Second
	idleTimeout    = 3 * time.Minute
	closeTimeout   = 5 * time.Second // for the answers under way when the process ends
	maxHeaderBytes = 32 << 10
	maxFormBytes   = 64 << 10
	maxRequests    = 32 // at a time
)

// Server serves the pages. Make one with [Serve].
type Server struct {
	Options
	survey *survey
	jobs   *jobs
	flash  *flashes
	check  lastCheck
	slots  chan struct{} // one for each request under way
	server *http.Server
	served chan struct{}
	stop   context.CancelFunc // of what goes on in the background
	ctx    context.Context
}

// Serve serves the pages until [Server.Close].
func Serve(l net.Listener, o Options) *Server {
	s := &Server{Options: o, jobs: &jobs{}, flash: &flashes{}, slots: make(chan struct{}, maxRequests), served: make(chan struct{})}
	s.ctx, s.stop = context.WithCancel(context.Background())
	s.survey = newSurvey(s)
	s.server = &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: requestTimeout, ReadTimeout: requestTimeout,
		WriteTimeout: answerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
	}
	go func() {
		defer close(s.served)
		_ = s.server.Serve(l) // Close ends it
	}()
	go s.survey.run(s.ctx)
	return s
}

// Close ends the server, and what it does in the background: a redrive stops between two chunks. Answers
// under way have a little time left.
func (s *Server) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		_ = s.server.Close()
	}
	<-s.served
	s.stop()
	<-s.survey.done
	s.jobs.wait()
}
