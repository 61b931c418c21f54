package main

import (
	"fmt"
	"math"
	"time"

	"github.com/fairclaim/fairclaim/cmd/sweep/internal/overview"
	"github.com/fairclaim/fairclaim/cmd/sweep/internal/shards"
)

// status is the result of the command status, for JSON; its methods print it as tables.
type status struct {
	Database     string         `json:"database"`
	Server       string         `json:"server"`
	At           time.Time      `json:"at"` // on the database's clock
	Shards       int32          `json:"shard_count"`
	DefaultQuota int32          `json:"default_quota"`
	CountCap     int64          `json:"count_cap"` // counts stop here
	Namespaces   []namespaceRow `json:"namespaces"`
	Scanned      int            `json:"namespaces_scanned"`
	More         bool           `json:"more_namespaces"` // there are more than were scanned, or may be where --scan-time was over
	late         bool           // the time for reading namespaces was over before all were read
	sort         string         // which namespaces come first, the value of --sort
	wide         bool           // print texts whole
	overview.Cluster
	Pauses        []pauseRow        `json:"pauses"`
	Holds         []holdRow         `json:"holds"`
	ExpiredLeases int64             `json:"expired_leases"`
	Horizon       []overview.Holder `json:"horizon"`
}

type namespaceRow struct {
	Namespace   string     `json:"namespace"`
	Pending     int64      `json:"pending"`
	Unripe      int64      `json:"unripe"`         // of the pending ones, those that wait for their time
	OldestDueAt *time.Time `json:"oldest_due_at"`  // when the oldest due one came due; in the year 1: always due; null: none is due
	Waited      *float64   `json:"waited_seconds"` // how long it had been due at status.At
	Claimed     int64      `json:"claimed"`
	Failed      int64      `json:"failed"`
	Quota       int32      `json:"quota"`
	Strict      bool       `json:"strict"`
	Paused      bool       `json:"paused"`
	Held        int64      `json:"held"` // task queues of it that are held as destinations, 100 at most
}

// backlog is how many messages the namespace has that are not at their end, or that somebody must look at.
func (n namespaceRow) backlog() int64 { return n.Pending + n.Claimed + n.Failed }

// waited is how long the oldest due message has waited, in seconds; below that of all others where none is due.
func (n namespaceRow) waited() float64 {
	if n.Waited == nil {
		return math.Inf(-1)
	}
	return *n.Waited
}

// oldestDue is OldestDueAt as a table shows it.
func (n namespaceRow) oldestDue(now time.Time) string {
	if n.OldestDueAt != nil && n.OldestDueAt.IsZero() {
		return "always"
	}
	return ago(now, n.OldestDueAt)
}

func (s status) print(a *app) error {
	if err := a.printf("%s, PostgreSQL %s, %s; %d shards, default quota %d\n",
		visible(s.Database), visible(s.Server), timeText(s.At), s.Shards, s.DefaultQuota); err != nil {
		return err
	}
	for _, h := range s.Holds {
		if h.Namespace == nil && h.State != "recovering" {
			if err := a.printf("HELD FOR ALL NAMESPACES: route %q; see the table of holds below.\n", h.TaskQueue); err != nil {
				return err
			}
		}
	}
	for _, section := range []func(*app) error{s.printNamespaces, s.printNodes, s.printPauses, s.printHolds, s.printHorizon} {
		if err := section(a); err != nil {
			return err
		}
	}
	if s.ExpiredLeases > 0 {
		return a.printf("expired leases: %s; the next rescue, of any running node, takes them back", counted(s.ExpiredLeases, s.CountCap))
	}
	return a.printf("expired leases: none")
}

func (s status) printNamespaces(a *app) error {
	if s.Scanned == 0 {
		return a.printf("No namespace has messages or settings.\n")
	}
	t := newTable(a.stdout, s.wide, "NAMESPACE", "PENDING", "NOT DUE", "OLDEST DUE", "CLAIMED", "QUOTA", "FAILED", "STATE")
	for _, n := range s.Namespaces {
		quota, state := fmt.Sprint(n.Quota), ""
		if n.Strict {
			quota += " strict"
		}
		switch {
		case n.Paused:
			state = "paused"
		case n.Quota == 0:
			state = "held by its quota"
		case n.Claimed >= int64(n.Quota):
			state = "at its quota"
		}
		if n.Held > 0 {
			if state != "" {
				state += ", "
			}
			state += plural(n.Held, "route") + " held"
		}
		t.row(n.Namespace, counted(n.Pending, s.CountCap), counted(n.Unripe, s.CountCap), n.oldestDue(s.At), counted(n.Claimed, s.CountCap), quota, counted(n.Failed, s.CountCap), state)
	}
	if err := t.flush(); err != nil {
		return err
	}
	which := "with the largest backlog"
	if s.sort == sortWait {
		which = "with the longest wait"
	}
	switch {
	case s.late:
		return a.printf("The %d %s of the first %d by name; there may be more (--scan-time).\n", len(s.Namespaces), which, s.Scanned)
	case s.More:
		return a.printf("The %d %s of the first %d by name; there are more (--scan).\n", len(s.Namespaces), which, s.Scanned)
	case s.Scanned > len(s.Namespaces):
		return a.printf("The %d %s of %d (--top).\n", len(s.Namespaces), which, s.Scanned)
	}
	return a.printf("")
}

func (s status) printHolds(a *app) error {
	if len(s.Holds) == 0 {
		return a.printf("No destination is held.\n")
	}
	if err := printHolds(a, s.wide, s.Holds); err != nil {
		return err
	}
	return a.printf("")
}

func (s status) printNodes(a *app) error {
	if len(s.Nodes) == 0 {
		if err := printObstacles(a, s.Cluster); err != nil {
			return err
		}
		return a.printf("No node has claimed or sent a heartbeat yet.\n")
	}
	t := newTable(a.stdout, s.wide, "NODE", "STATE", "SHARDS", "IN FLIGHT", "LAST CLAIM", "ROWS")
	for _, n := range s.Nodes {
		state := n.State()
		if n.HeartbeatAt != nil && !n.Live {
			state = "silent since " + timeText(*n.HeartbeatAt)
		}
		t.row(n.Node, state, shards.Format(n.Shards), inFlight(n), n.LastClaimAt, n.LastClaimed)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if err := printCut(a, len(s.Nodes), listRows); err != nil {
		return err
	}
	if err := printOwners(a, s.Cluster, s.Shards); err != nil {
		return err
	}
	return a.printf("")
}

func (s status) printPauses(a *app) error {
	if len(s.Pauses) == 0 {
		return a.printf("Nothing is paused.\n")
	}
	t := newTable(a.stdout, s.wide, "PAUSED", "SINCE", "UNTIL", "BY", "NOTE")
	for _, p := range s.Pauses {
		t.row(pauseTarget{Namespace: p.Namespace, Queue: p.TaskQueue}.String(), p.Since, p.Until, p.By, p.Note)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if err := printCut(a, len(s.Pauses), listRows); err != nil {
		return err
	}
	return a.printf("")
}

func (s status) printHorizon(a *app) error {
	if len(s.Horizon) == 0 {
		return a.printf("Nothing keeps dead rows alive.\n")
	}
	t := newTable(a.stdout, s.wide, "KEEPS DEAD ROWS", "NAME", "OF", "TRANSACTIONS", "FOR", "STATE")
	for _, h := range s.Horizon {
		t.row(h.Kind, h.Name, h.Who, h.Xids, horizonAge(h.Secs), h.What)
	}
	if err := t.flush(); err != nil {
		return err
	}
	return a.printf("")
}
