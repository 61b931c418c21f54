package ui

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/overview"
	"github.com/fairclaim/fairclaim/driver"
)

const (
	horizonRows  = 10
	checkNewest  = 100_000 // messages that a check from a page looks at
	checkTimeout = 45 * time.Second
	checkEvery   = time.Minute // no more checks than this
)

type nodesView struct {
	outbox
	Holders []overview.Holder
	Expired int64
	Pauses  []pauseRow
	Holds   []holdRow
	Check   *checkResult
	Checks  int64 // checkNewest
}

// Troubles are those of the outbox, without a hint at this page.
func (v nodesView) Troubles() []string {
	list := v.outbox.Troubles()
	for i := range list {
		list[i] = strings.TrimSuffix(list[i], " See Nodes.")
	}
	return list
}

// checkResult is what a check found.
type checkResult struct {
	At    time.Time // on the database's clock
	By    string
	Found []driver.Violation
}

// Violations is how many of what it found are no advice.
func (c checkResult) Violations() (n int64) {
	for _, v := range c.Found {
		if v.Guarantee != driver.Advice {
			n++
		}
	}
	return n
}

// lastCheck is the last check that was run from the pages of this process.
type lastCheck struct {
	mu     sync.Mutex
	result *checkResult
	begun  time.Time
}

// nodes shows who claims what.
func (s *Server) nodes(r *http.Request) (*page, error) {
	s.survey.look()
	v := nodesView{Checks: checkNewest}
	err := s.read(r.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
		if v.outbox, err = readOutbox(ctx, tx); err != nil {
			return err
		}
		if v.Holders, err = overview.ReadHolders(ctx, tx, horizonRows); err != nil {
			return err
		}
		if err = tx.QueryRow(ctx, `select outbox.count_expired($1::int)`, v.CountCap).Scan(&v.Expired); err != nil {
			return fmt.Errorf("count expired leases: %w", err)
		}
		if v.Holds, err = rowsOf[holdRow](ctx, tx, holdColumns+`order by h.task_queue, h.namespace limit $1::int`, listPauses); err != nil {
			return fmt.Errorf("read the holds: %w", err)
		}
		v.Pauses, err = rowsOf[pauseRow](ctx, tx, `
			select p.namespace, p.task_queue, p.since, p.by, p.note, p.until from outbox.pauses as p
			order by p.namespace nulls first, p.task_queue nulls first limit $1::int`, listPauses)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.check.mu.Lock()
	v.Check = s.check.result
	s.check.mu.Unlock()
	return &page{name: "nodes", title: "Nodes and shards", at: v.At, data: v}, nil
}

// runCheck audits the newest messages. It writes nothing, so that it needs no --actions; one runs at a time.
func (s *Server) runCheck(ctx context.Context, who string) (string, error) {
	s.check.mu.Lock()
	if since := time.Since(s.check.begun); since < checkEvery {
		s.check.mu.Unlock()
		return "", &problem{
			status: http.StatusTooManyRequests, Title: "Not yet",
			Text: fmt.Sprintf("A check began %s ago, and there is no more than one in %s.", span(since), span(checkEvery)),
		}
	}
	s.check.begun = time.Now()
	s.check.mu.Unlock()
	c := checkResult{By: who}
	err := s.readPlain(ctx, checkTimeout, func(ctx context.Context, tx pgx.Tx) (err error) {
		if err = tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&c.At); err != nil {
			return err
		}
		c.Found, err = driver.Check(ctx, tx, checkNewest)
		return err
	})
	if err != nil {
		return "", err
	}
	s.check.mu.Lock()
	s.check.result = &c
	s.check.mu.Unlock()
	if n := c.Violations(); n > 0 {
		return fmt.Sprintf("The check found %s: see below.", plural(n, "violation")), nil
	}
	return "The check found no violation.", nil
}
