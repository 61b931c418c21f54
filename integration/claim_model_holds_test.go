package integration

import (
	"math"
	"slices"
)

// modelHolds is what is known of destinations, and how long they are held, in seconds.
type modelHolds struct {
	holdAfter    int
	holdBase     float64
	holdCap      float64
	holdGiveUp   float64
	destinations map[modelLane]*modelDestination
	reports      []modelReport // that no claim has read
}

// modelDestination is a destination that has a row: a route of a namespace, or, under an empty namespace,
// the route of all.
type modelDestination struct {
	State     string // well, failing, held, recovering
	Shared    string // what an operator said of the route of all: true, false, or nothing
	Score     int
	Failed    []int64  // the messages that the score counts, the last one first
	FailedOf  []string // and their namespaces, of the route of all, sorted: as many as decide it
	Since     modelInstant
	Until     modelInstant
	Step      int
	Probe     modelProbe
	Lifted    modelInstant
	LiftToken int64
	Before    int64 // the highest token when the hold began
}

type modelProbe struct{ ID, Token int64 }

// modelInstant bounds an instant that the database chooses, until the next compare has read it. Zero: none.
type modelInstant struct{ Least, Most float64 }

func (i modelInstant) plus(least, most float64) modelInstant {
	return modelInstant{i.Least + least, i.Most + most}
}

// modelReport is what a settle says of a destination. Of many that were delivered in one call, it may be any
// of IDs.
type modelReport struct {
	Kind string
	modelProbe
	modelLane
	Shared string // true, false, or "": it does not count for the route of all
	Hold   float64
	IDs    []int64
}

// modelLifted is the lift token of a destination whose lift the next compare will read: larger than all before.
const modelLifted = math.MaxInt64

// modelOpen is the gate of a destination that lets all through.
const modelOpen = math.MaxInt

// modelRamp is how long the flow grows after a hold, in seconds.
const modelRamp = 10

// destination is the one of a lane; without a row it is well.
func (o *modelOutbox) destination(lane modelLane) *modelDestination {
	if d := o.destinations[lane]; d != nil {
		return d
	}
	return &modelDestination{State: "well"}
}

func (d *modelDestination) inTrouble() bool { return d.State != "well" }

// ramping: it was lifted a moment ago.
func (d *modelDestination) ramping(now float64) bool {
	return d.State == "recovering" && now < d.Lifted.Least+modelRamp
}

// steps is how often the next hold is doubled. After a lift that fades.
func (o *modelOutbox) steps(d *modelDestination, now float64) int {
	if d.State == "held" || d.Lifted == (modelInstant{}) {
		return d.Step
	}
	fade := (now - d.Lifted.Least) / o.holdCap
	return int(float64(d.Step) * min(max(1-fade, 0), 1))
}

// gate is how many messages of a destination one claim may take.
func (o *modelOutbox) gate(lane modelLane, now float64) int {
	d := o.destination(lane)
	switch probe := o.messages[d.Probe.ID]; {
	case d.State == "held" && now < d.Until.Most:
		return 0
	case d.State == "held" && probe != nil && probe.State == "claimed" && probe.Token == d.Probe.Token:
		return 0 // one is out
	case d.State == "held":
		return 1
	case d.ramping(now):
		return 1 << int(max(now-d.Lifted.Least, 0))
	}
	return modelOpen
}

// passes reports whether the clock came past anything, from before to after, that decides something about
// destinations: then it is open what a call in between has seen.
func (o *modelOutbox) passes(before, after float64) bool {
	at := func(d *modelDestination, now float64) [5]float64 {
		age := now - d.Lifted.Least
		return [5]float64{
			min(math.Floor(age), modelRamp), float64(o.steps(d, now)), modelSign(age - o.holdCap),
			modelSign(now - d.Until.Least), modelSign(now - d.Since.Least - o.holdGiveUp),
		}
	}
	for _, d := range o.destinations {
		if at(d, before) != at(d, after) {
			return true
		}
	}
	return after-before > 0.5
}

func modelSign(x float64) float64 { return math.Copysign(1, x) }

// fold is what a claim, or observe(), makes of the reports.
func (o *modelOutbox) fold(now modelInstant, token int64) {
	fresh := map[modelLane]bool{}
	reports := o.reports[:min(len(o.reports), 500)]
	o.reports = o.reports[len(reports):]
	for _, r := range reports {
		all := modelLane{Queue: r.Queue}
		allHeld := o.destination(all).State == "held"
		if o.hears(all, r) {
			o.hear(all, r, fresh, now, token)
		}
		// What is wrong with the endpoint of all is not held against one of them.
		if !allHeld || r.Kind != "unreachable" && r.Kind != "broken" || o.destination(r.modelLane).State == "held" {
			o.hear(r.modelLane, r, fresh, now, token)
		}
	}
}

// hears reports whether a report concerns the route of all.
func (o *modelOutbox) hears(all modelLane, r modelReport) bool {
	switch d := o.destination(all); {
	case d.State == "held":
		return true
	case r.Kind == "up":
		return d.inTrouble()
	case r.Shared == "":
		return false
	case d.Shared != "":
		return d.Shared == "true"
	}
	return r.Shared == "true"
}

// hear is what one report makes of a destination.
func (o *modelOutbox) hear(lane modelLane, r modelReport, fresh map[modelLane]bool, now modelInstant, token int64) {
	d := o.destinations[lane]
	if d == nil {
		if r.Kind == "up" {
			return
		}
		d = &modelDestination{State: "well"}
		o.destinations[lane] = d
	}
	if !d.inTrouble() {
		fresh[lane] = true
	}
	if d.State == "held" && r.modelProbe != d.Probe || r.Token < d.LiftToken {
		// Of a held one only the probe counts, and what was claimed before a lift says nothing.
	} else if r.Kind == "up" {
		o.reached(d, now)
	} else {
		o.failed(d, lane.Namespace == "", r, fresh[lane], now, token)
	}
	// What is well is forgotten, but not what an operator said, nor, for a while, that it was held.
	if !d.inTrouble() && d.Shared == "" && (d.Lifted == (modelInstant{}) || d.Lifted.Most+o.holdCap <= now.Least) {
		delete(o.destinations, lane)
	}
}

// reached: a message was delivered.
func (o *modelOutbox) reached(d *modelDestination, now modelInstant) {
	switch {
	case d.State == "held":
		d.State, d.Lifted, d.LiftToken = "recovering", now, modelLifted
		d.Since, d.Until, d.Probe = modelInstant{}, modelInstant{}, modelProbe{}
	case !d.ramping(now.Least):
		d.State = "well"
	}
	d.Score, d.Failed, d.FailedOf = 0, nil, nil
}

// failed: a message was not delivered, by the destination's doing.
func (o *modelOutbox) failed(d *modelDestination, isAll bool, r modelReport, fresh bool, now modelInstant, token int64) {
	step := o.steps(d, now.Least)
	if d.State != "held" {
		several := o.count(d, isAll, r, fresh)
		if d.State == "well" {
			d.State = "failing"
		}
		enough := o.holdAfter * 4
		if isAll {
			enough = o.holdAfter * 8
		} else if d.ramping(now.Least) {
			enough = min(enough, 8)
		}
		trips := !several && d.Score >= enough && (!isAll || len(d.FailedOf) >= o.holdAfter)
		if !trips && (isAll || r.Kind != "busy" && r.Kind != "gone") {
			return
		}
	}
	if d.State != "held" || d.Step == 0 {
		d.Since = now
	}
	if isAll {
		step -= o.another(d, r.Namespace)
	}
	length := min(o.holdBase*math.Pow(2, float64(step)), o.holdCap)
	d.Until = now.plus(length*0.8, length*1.2)
	if r.Kind == "busy" {
		d.Until.Least = max(d.Until.Least, now.Least+min(r.Hold, 3600))
		d.Until.Most = max(d.Until.Most, now.Most+min(r.Hold, 3600))
	}
	if r.Kind == "gone" && !isAll || now.Least >= d.Since.Least+o.holdGiveUp {
		d.Until = modelInstant{math.Inf(1), math.Inf(1)}
	}
	if d.State != "held" {
		d.Before = token
	}
	d.State, d.Step, d.Probe = "held", min(step+1, 60), modelProbe{}
}

// another notes whose report holds the route of all, or goes on holding it. While it is the first one of
// another namespace, of fewer than holdAfter since the last step, the hold is as long as the last one was: one
// step less.
func (o *modelOutbox) another(d *modelDestination, namespace string) int {
	if d.State == "held" && d.Step > 0 && len(d.FailedOf) < o.holdAfter && !slices.Contains(d.FailedOf, namespace) {
		d.FailedOf = slices.Sorted(slices.Values(append(d.FailedOf, namespace)))
		return 1
	}
	d.FailedOf = []string{namespace}
	return 0
}

// count adds to the failures in a row. Of several that come in together, of a destination that was well, the
// first counts.
func (o *modelOutbox) count(d *modelDestination, isAll bool, r modelReport, fresh bool) (several bool) {
	switch {
	case fresh && d.Score > 0:
		return true
	case !slices.Contains(d.Failed, r.ID):
		d.Score += map[bool]int{true: 1, false: 4}[r.Kind == "broken"]
		d.Failed = append([]int64{r.ID}, d.Failed[:min(len(d.Failed), 8*o.holdAfter-1)]...)
		if isAll && len(d.FailedOf) < o.holdAfter && !slices.Contains(d.FailedOf, r.Namespace) {
			d.FailedOf = slices.Sorted(slices.Values(append(d.FailedOf, r.Namespace)))
		}
	case r.Kind != "broken":
		d.Score++
	}
	return false
}

// hold is an operator's: a hold that is there gets longer, never shorter. Its probe stays out, and says nothing more.
func (o *modelOutbox) hold(lane modelLane, until modelInstant, now modelInstant, token int64) {
	d := o.destinations[lane]
	if d == nil {
		d = &modelDestination{State: "well"}
		o.destinations[lane] = d
	}
	if d.State != "held" {
		*d = modelDestination{State: "held", Shared: d.Shared, Since: now, Lifted: d.Lifted, LiftToken: d.LiftToken, Before: token}
	}
	if d.Until.Most < until.Least {
		d.Until, d.LiftToken = until, modelLifted
	}
}

// lift is an operator's.
func (o *modelOutbox) lift(lane modelLane, now modelInstant) bool {
	d := o.destination(lane)
	if d.State != "held" {
		return false
	}
	*d = modelDestination{State: "recovering", Shared: d.Shared, Lifted: now, LiftToken: modelLifted}
	return true
}

// share is an operator's word of the route of all; an empty one takes it back.
func (o *modelOutbox) share(queue, shared string) {
	lane := modelLane{Queue: queue}
	d := o.destination(lane)
	o.destinations[lane] = d
	d.Shared = shared
	if shared == "false" && d.State == "failing" {
		d.State, d.Score, d.Failed, d.FailedOf = "well", 0, nil, nil
	}
}

// observed is what observe() says of a lane: the worse of its own destination and the route of all.
func (o *modelOutbox) observed(lane modelLane) string {
	own, all := o.destination(lane).State, o.destination(modelLane{Queue: lane.Queue}).State
	for _, state := range []string{"held", "failing", "recovering"} {
		if own == state || all == state {
			return state
		}
	}
	return "well"
}

// up are the reports of messages that are delivered in one call: one for each route whose destination is in
// trouble, or of which a failure is unread, and while that is held none but the probe's.
func (o *modelOutbox) up(ids []int64) []modelReport {
	lanes := map[modelLane][]*modelMessage{}
	for _, id := range ids {
		m := o.messages[id]
		lanes[m.modelLane] = append(lanes[m.modelLane], m)
	}
	var reports []modelReport
	for lane, messages := range lanes {
		r := modelReport{Kind: "up", modelLane: lane, Shared: "false"}
		for _, d := range []*modelDestination{o.destination(lane), o.destination(modelLane{Queue: lane.Queue}), o.unread(lane)} {
			for _, m := range messages {
				switch {
				case d.State == "held" && d.Probe == (modelProbe{m.ID, m.Token}):
					r.modelProbe, r.IDs = d.Probe, []int64{m.ID}
				case d.State == "held" || !d.inTrouble() || len(r.IDs) == 1 && r.ID == r.IDs[0]:
				case m.Token > r.Token:
					r.modelProbe, r.IDs = modelProbe{0, m.Token}, []int64{m.ID}
				case m.Token == r.Token:
					r.IDs = append(r.IDs, m.ID)
				}
			}
		}
		if len(r.IDs) > 0 {
			reports = append(reports, r)
		}
	}
	return reports
}

// unread is a destination that fails where a failure of the lane, or of the route of all, is reported and not yet read.
func (o *modelOutbox) unread(lane modelLane) *modelDestination {
	for _, r := range o.reports[max(len(o.reports)-500, 0):] {
		all := o.destination(modelLane{Queue: r.Queue})
		counts := r.Shared != "" && (all.Shared == "true" || all.Shared == "" && r.Shared == "true")
		if r.Kind != "up" && r.Queue == lane.Queue && (r.Namespace == lane.Namespace || counts) {
			return &modelDestination{State: "failing"}
		}
	}
	return &modelDestination{State: "well"}
}

// holds says what holds a message's destination: nothing, a hold, and whether the message is its probe, of which it
// hears. old: it was claimed before a hold of it was lifted, or made longer by an operator.
func (o *modelOutbox) holds(m *modelMessage) (held, probe, old bool) {
	for _, lane := range []modelLane{m.modelLane, {Queue: m.Queue}} {
		d := o.destination(lane)
		if d.State == "held" {
			held = true
			probe = probe || d.Probe == modelProbe{m.ID, m.Token} && m.Token >= d.LiftToken
		}
		old = old || m.Token < d.LiftToken
	}
	return held, probe, old
}

// isForgotten reports whether prune forgets a destination, that has been as it is for long. One that is held stays as
// long as something may be there that waits for it, its probe is out, or a report of that waits.
func (o *modelOutbox) isForgotten(lane modelLane, long bool, now float64) bool {
	d := o.destination(lane)
	if d.State != "held" {
		return d.Shared == "" && long
	}
	waiting := o.all(func(m *modelMessage) bool {
		return m.State == "pending" && m.Namespace == lane.Namespace && (!m.Ripe || m.Queue == lane.Queue) || d.Probe == modelProbe{m.ID, m.Token}
	})
	unread := func(r modelReport) bool { return r.modelProbe == d.Probe }
	return !slices.ContainsFunc(o.reports, unread) && lane.Namespace != "" && d.Until.Most < now-86400 && len(waiting) == 0
}
