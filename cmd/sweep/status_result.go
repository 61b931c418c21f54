package main

import (
	"fmt"
	"time"

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
	More         bool           `json:"more_namespaces"` // there are more than were scanned
	nodes
	Pauses        []pauseRow      `json:"pauses"`
	ExpiredLeases int64           `json:"expired_leases"`
	Horizon       []horizonHolder `json:"horizon"`
}

type namespaceRow struct {
	Namespace string `json:"namespace"`
	Pending   int64  `json:"pending"`
	Claimed   int64  `json:"claimed"`
	Failed    int64  `json:"failed"`
	Quota     int32  `json:"quota"`
	Strict    bool   `json:"strict"`
	Paused    bool   `json:"paused"`
}

func (s status) print(a *app) error {
	if err := a.printf("%s, PostgreSQL %s, %s; %d shards, default quota %d\n",
		visible(s.Database), visible(s.Server), timeText(s.At), s.Shards, s.DefaultQuota); err != nil {
		return err
	}
	for _, section := range []func(*app) error{s.printNamespaces, s.printNodes, s.printPauses, s.printHorizon} {
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
	t := newTable(a.stdout, "NAMESPACE", "PENDING", "CLAIMED", "QUOTA", "FAILED", "STATE")
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
		t.row(n.Namespace, counted(n.Pending, s.CountCap), counted(n.Claimed, s.CountCap), quota, counted(n.Failed, s.CountCap), state)
	}
	if err := t.flush(); err != nil {
		return err
	}
	switch {
	case s.More:
		return a.printf("The %d with the largest backlog of the first %d by name; there are more (--scan).\n", len(s.Namespaces), s.Scanned)
	case s.Scanned > len(s.Namespaces):
		return a.printf("The %d with the largest backlog of %d (--top).\n", len(s.Namespaces), s.Scanned)
	}
	return a.printf("")
}

func (s status) printNodes(a *app) error {
	if len(s.Nodes) == 0 {
		return a.printf("No node has claimed or sent a heartbeat yet.\n")
	}
	t := newTable(a.stdout, "NODE", "STATE", "SHARDS", "IN FLIGHT", "LAST CLAIM", "ROWS")
	for _, n := range s.Nodes {
		state := n.state()
		if n.HeartbeatAt != nil && !n.Live {
			state = "silent since " + timeText(*n.HeartbeatAt)
		}
		t.row(n.Node, state, shards.Format(n.Shards), n.inFlight(), n.LastClaimAt, n.LastClaimed)
	}
	if err := t.flush(); err != nil {
		return err
	}
	if err := printCut(a, len(s.Nodes), listRows); err != nil {
		return err
	}
	if err := s.printOwners(a, s.Shards); err != nil {
		return err
	}
	return a.printf("")
}

func (s status) printPauses(a *app) error {
	if len(s.Pauses) == 0 {
		return a.printf("Nothing is paused.\n")
	}
	t := newTable(a.stdout, "PAUSED", "SINCE", "BY", "NOTE")
	for _, p := range s.Pauses {
		t.row(pauseTarget{Namespace: p.Namespace, Queue: p.TaskQueue}.String(), p.Since, p.By, p.Note)
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
	t := newTable(a.stdout, "KEEPS DEAD ROWS", "NAME", "OF", "TRANSACTIONS", "FOR", "STATE")
	for _, h := range s.Horizon {
		t.row(h.Kind, h.Name, h.Who, h.Xids, h.age(), h.What)
	}
	if err := t.flush(); err != nil {
		return err
	}
	return a.printf("")
}
