package monitor

import (
	"fmt"
	"time"

	"github.com/fairclaim/fairclaim/driver/node"
)

// startLimit is how long a node may take until its loop turns for the first time. A start has
// time-outs of its own, and ends by them: this is for one that ends by none.
const startLimit = 2 * time.Minute

// alive says whether the loop turns, and how that is known. A loop that hangs (in the log, whose
// reader takes nothing in, for example) neither delivers nor extends leases: only a restart helps.
// A database that is away is no reason to restart: the loop turns, and tries again.
func (m *Monitor) alive() (ok bool, why string) {
	s, turns, silent := m.last()
	limit := startLimit
	if turns {
		limit = s.StuckAfter
	}
	silent = silent.Round(time.Millisecond)
	switch {
	case silent > limit:
		return false, fmt.Sprintf("stuck: the loop has not been heard of for %v, which is longer than %v", silent, limit)
	case !turns:
		return true, "starting"
	default:
		return true, fmt.Sprintf("alive: the loop was heard of %v ago", silent)
	}
}

// ready says whether the node does its work: the database answers it, and it has shards, or stands
// by for some. It says no while the node drains, so that a rollout can wait for its successor. A node
// that is paused is ready: it delivers.
//
// The schema is one that the node can work with, or its start has failed; where it is changed
// afterwards so that the node's calls fail, the node is not ready.
func (m *Monitor) ready() (ok bool, why string) {
	if alive, why := m.alive(); !alive {
		return false, why
	}
	s, turns, _ := m.last()
	return readyBy(s, turns)
}

func readyBy(s node.State, turns bool) (ok bool, why string) {
	switch {
	case !turns:
		return false, "not ready: starting"
	case s.Ended:
		return false, "not ready: the node has ended"
	case s.Paused == node.PausedDraining:
		return false, "not ready: draining"
	case s.Failing != "":
		return false, fmt.Sprintf("not ready: the database failed the call %s; the log says why", s.Failing)
	case s.Heartbeat.IsZero():
		return false, "not ready: no heartbeat has been sent yet"
	case s.Shards == 0:
		return true, "ready: on standby, no shard is left for this node"
	case s.Paused != "":
		return true, fmt.Sprintf("ready: %d shards; claiming is paused: %s", s.Shards, s.Paused)
	default:
		return true, fmt.Sprintf("ready: %d shards", s.Shards)
	}
}
