package integration

import (
	"errors"
	"fmt"
	"math"
)

// gates are those of a lane: its own, and that of the route of all.
func (o *modelOutbox) gates(lane modelLane, now float64) (own, common int) {
	return o.gate(lane, now), o.gate(modelLane{Queue: lane.Queue}, now)
}

// pass is how many messages of a route the gates let through for the next namespace of a walk: of what the
// route of all lets through one gets a tenth at most.
func (o *modelOutbox) pass(queue string, own, common int, left map[string]int) int {
	if common == modelOpen {
		return own
	}
	if _, ok := left[queue]; !ok {
		left[queue] = common
	}
	n := min(own, left[queue], (common+9)/10)
	left[queue] -= n
	return n
}

// visitAlone looks at a namespace without what the routes of all let through, which depends on those before it.
func (o *modelOutbox) visitAlone(c modelClaim, namespace string) modelVisit {
	left := map[string]int{}
	for lane := range o.destinations {
		left[lane.Queue] = 0
	}
	return o.visit(c, namespace, math.MaxInt, left)
}

// waits reports whether a lane has something that a claim may take, whatever the claim takes of others.
func (o *modelOutbox) waits(c modelClaim, lane modelLane) bool {
	own, common := o.gates(lane, c.now)
	return o.due(lane, c.shards, c.now) > 0 && !o.paused(lane) && own > 0 && common == modelOpen
}

// reach is for how many of the due routes of a namespace a claim asks for their gates at least: an equal part of the
// batch, and as many more as routes of all may be shut.
func (o *modelOutbox) reach(c modelClaim, namespaces int) int {
	stride := max(min(c.batch, o.maxVisits, namespaces), 1)
	reach := min((c.batch+stride-1)/stride, o.maxRoutes)
	for lane, d := range o.destinations {
		if lane.Namespace == "" && (d.State == "held" || d.State == "recovering") {
			reach++
		}
	}
	return reach
}

// judgeGates: no claim takes more of a destination than its gate lets through, and of those that are held none
// but the probe is out.
func (o *modelOutbox) judgeGates(c modelClaim, rows []modelClaimed) error {
	got := map[modelLane]int{}
	for _, r := range rows {
		got[r.modelLane]++
		got[modelLane{Queue: r.Queue}]++
	}
	for lane, n := range got {
		if gate := o.gate(lane, c.now); n > gate {
			return fmt.Errorf("INV-16: %d messages of %v, which is %s and lets %d through", n, lane, o.destination(lane).State, gate)
		}
	}
	return nil
}

// judgeHeld: of what was claimed since a destination is held, one message at most is out.
func (o *modelOutbox) judgeHeld() error {
	var errs []error
	for lane, d := range o.destinations {
		if d.State != "held" {
			continue
		}
		out := o.all(func(m *modelMessage) bool {
			return m.State == "claimed" && m.Token > d.Before && m.Queue == lane.Queue && (m.Namespace == lane.Namespace || lane.Namespace == "")
		})
		if len(out) > 1 {
			errs = append(errs, fmt.Errorf("INV-16: %d messages of %v were claimed since it is held and are out", len(out), lane))
		}
	}
	return errors.Join(errs...)
}

// tried notes the probes among the rows that a claim returned.
func (o *modelOutbox) tried(rows []modelClaimed) {
	for _, r := range rows {
		for _, lane := range []modelLane{r.modelLane, {Queue: r.Queue}} {
			if d := o.destination(lane); d.State == "held" {
				d.Probe = modelProbe{r.ID, r.Token}
			}
		}
	}
}

// isHeld: a message that a claim takes all the same is the probe.
func (o *modelOutbox) isHeld(lane modelLane) bool {
	return o.destination(lane).State == "held" || o.destination(modelLane{Queue: lane.Queue}).State == "held"
}

// judgeProbes: while a namespace waits for the probe of a route of all, no other one has two. That is so as long as
// each claim of the node comes once around: others leave off behind whom they serve last.
func (r *modelRun) judgeProbes(c modelClaim, rows []modelClaimed) error {
	eligible := 0
	visits := r.model.visits(c)
	for _, v := range visits {
		if v.verdict == "eligible" {
			eligible++
		}
	}
	around := len(visits) == len(r.model.namespaces(c.cursor)) && eligible < c.batch && c.maxBytes == 0
	for _, t := range r.tenants {
		lane := modelLane{t.name, t.routes[0]}
		at := modelRoute{c.node, lane}
		isHeld := r.model.destination(modelLane{Queue: lane.Queue}).State == "held"
		probes := modelServed{}
		for _, row := range rows {
			if row.Queue == lane.Queue && isHeld {
				probes[row.Namespace] = true
			}
		}
		waits := isHeld && r.model.gate(lane, c.now) > 0 && r.model.visitAlone(c, t.name).headroom > 0 &&
			r.model.due(lane, c.shards, c.now) > 0 && !r.model.paused(lane)
		if !around || len(t.routes) > 1 || !waits || probes[t.name] {
			delete(r.probed, at)
		} else if twice := modelWait(r.probed, at, probes); twice != "" {
			return fmt.Errorf("INV-16: %q had two probes of all by %s while %v waited", twice, c.node, lane)
		}
	}
	return nil
}
