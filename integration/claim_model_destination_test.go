package integration

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/jackc/pgx/v5"
)

// errModelClock ends a history: the clock came past something in the midst of a call, such as the end of a hold.
var errModelClock = errors.New("the clock came past something")

// setHolds says how destinations are held in this history.
func (r *modelRun) setHolds() modelHolds {
	pick := func(of ...float64) float64 { return of[r.rng.IntN(len(of))] }
	h := modelHolds{
		holdAfter: []int{1, 2, 2, 3, 5}[r.rng.IntN(5)], holdBase: pick(100, 3600),
		destinations: map[modelLane]*modelDestination{},
	}
	h.holdCap = max(h.holdBase, pick(500, 3600, 40000))
	h.holdGiveUp = max(h.holdCap, pick(50000, 432000))
	return h
}

// past is the time from before until now. No clock may have come past anything meanwhile.
func (r *modelRun) past(ctx context.Context, before float64) (modelInstant, error) {
	after, err := r.clock(ctx)
	cameDue := func(m *modelMessage) bool { return before < m.Visible && m.Visible <= after }
	if err == nil && (r.model.passes(before, after) || len(r.model.all(cameDue)) > 0) {
		err = errModelClock
	}
	return modelInstant{before, after}, err
}

// failDestination says of these claims that their destination failed, and of some with tokens that are not theirs.
func (r *modelRun) failDestination(ctx context.Context, ids []int64) error {
	wrong := r.some(r.in("claimed", "pending", "done", "failed", "cancelled"))
	wrong = slices.DeleteFunc(wrong[:min(len(wrong), 3)], func(id int64) bool { return slices.Contains(ids, id) })
	all := slices.Concat(ids, wrong)
	usual := []string{"unreachable", "unreachable", "broken", "busy", "gone"}[r.rng.IntN(5)]
	var kinds []string
	var shared []bool
	holds := []float64{-3600, 0, 1800, 1e6}
	var held []float64
	isShared := r.rng.IntN(2) == 0
	reached := make([]*string, len(all))
	for i, id := range all {
		if by := map[int64]string{0: "namespace", 1: "others"}[id%7]; by != "" {
			reached[i] = &by
		}
		kind := usual
		if r.rng.IntN(5) == 0 {
			kind = []string{"unreachable", "broken", "busy"}[r.rng.IntN(3)]
		}
		kinds, shared, held = append(kinds, kind), append(shared, isShared != (r.rng.IntN(8) == 0)), append(held, holds[r.rng.IntN(4)])
	}
	tokens := make([]int64, len(ids))
	for i, id := range ids {
		tokens[i] = r.model.messages[id].Token
	}
	r.note("fail destination of %v: %v, shared %v, for %v; and %v with other tokens", ids, kinds[:len(ids)], shared[:len(ids)], held[:len(ids)], wrong)
	before, err := r.clock(ctx)
	if err != nil {
		return err
	}
	rows, err := r.conn.Query(ctx, `select f.id, f.charged from outbox.fail_destination($1, $2, $3, null, array(select make_interval(secs => s) from unnest($4::float8[]) as s), $5, $6) as f`,
		all, slices.Concat(tokens, r.notTokens(wrong)), kinds, held, shared, reached)
	if err != nil {
		return err
	}
	var settled, wereCharged []int64
	var one int64
	var wasCharged bool
	_, err = pgx.ForEachRow(rows, []any{&one, &wasCharged}, func() error {
		if settled = append(settled, one); wasCharged {
			wereCharged = append(wereCharged, one)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("fail_destination: %w", err)
	}
	slices.Sort(settled)
	slices.Sort(wereCharged)
	if want := slices.Sorted(slices.Values(ids)); !slices.Equal(settled, want) {
		return fmt.Errorf("INV-9: fail_destination settled %v, the tokens of %v were right", settled, want)
	}
	var charged, behind []int64
	for i, id := range ids {
		m := r.model.messages[id]
		isHeld, isProbe, isOld := r.model.holds(m)
		counts := isProbe || !isHeld && !isOld
		asks := kinds[i] == "busy" || kinds[i] == "gone"
		passed := reached[i] != nil && *reached[i] == "namespace" && !isProbe && !asks
		if counts && !passed {
			forAll := fmt.Sprint(shared[i])
			if reached[i] != nil {
				forAll = ""
			}
			r.model.reports = append(r.model.reports, modelReport{kinds[i], modelProbe{id, m.Token}, m.modelLane, forAll, max(held[i], 0), []int64{id}})
		}
		switch {
		case counts && !isHeld && !asks:
			r.attempted(m)
			m.Ripe = false
			charged = append(charged, id)
		case counts: // behind the others
			m.Attempt--
			r.back(m, 0)
			m.Ripe = false
			behind = append(behind, id)
		default: // INV-8: as it was
			m.Attempt--
			r.back(m, m.Visible)
		}
	}
	if want := slices.Sorted(slices.Values(charged)); !slices.Equal(wereCharged, want) {
		return fmt.Errorf("INV-16: fail_destination says that it charged %v, it is %v", wereCharged, want)
	}
	return errors.Join(r.from(ctx, charged, before, 3600*0.8, 3600*1.2), r.from(ctx, behind, before, r.model.holdBase, r.model.holdBase))
}

// together are some of these messages: any, or those of a lane, or of a route.
func (r *modelRun) together(ids []int64) []int64 {
	if len(ids) == 0 {
		return []int64{}
	}
	of := r.model.messages[ids[r.rng.IntN(len(ids))]].modelLane
	how := r.rng.IntN(3)
	return r.some(slices.DeleteFunc(ids, func(id int64) bool {
		m := r.model.messages[id]
		return how == 0 && m.modelLane != of || how == 1 && m.Queue != of.Queue
	}))
}

// aDestination is one, mostly of those that have a row.
func (r *modelRun) aDestination(keep func(*modelDestination) bool) modelLane {
	var some []modelLane
	for lane, d := range r.model.destinations {
		if keep(d) {
			some = append(some, lane)
		}
	}
	slices.SortFunc(some, func(a, b modelLane) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Queue, b.Queue))
	})
	if len(some) > 0 && r.rng.IntN(4) > 0 {
		return some[r.rng.IntN(len(some))]
	}
	t := r.tenants[r.rng.IntN(len(r.tenants))]
	lane := modelLane{t.name, t.routes[r.rng.IntN(len(t.routes))]}
	if r.rng.IntN(3) == 0 {
		lane.Namespace = ""
	}
	return lane
}

// destination reads reports, moves the clock of holds, settles probes, or is an operator.
func (r *modelRun) destination(ctx context.Context) error {
	var err error
	n := r.rng.IntN(16)
	if r.isOutage && r.rng.IntN(3) > 0 { // the end of a hold, and its probe
		n = []int{9, 15}[r.rng.IntN(2)]
	}
	if r.isOutage && r.rng.IntN(12) == 0 {
		return r.prune(ctx)
	}
	if old := r.old(); len(old) > 0 && r.isOutage && r.rng.IntN(6) == 0 {
		return r.settleAs(ctx, "complete", r.together(old))
	}
	switch {
	case n < 3:
		return r.observe(ctx)
	case n < 4:
		return r.holdOne(ctx)
	case n < 5:
		return r.liftOne(ctx)
	case n < 6:
		return r.share(ctx)
	case n < 9:
		err = r.comeDue(ctx)
	case n < 13 && len(r.probes()) > 0:
		if r.rng.IntN(3) > 0 && (!r.isOutage || r.rng.IntN(4) == 0) {
			err = r.settleAs(ctx, "complete", r.probes())
		} else {
			err = r.failDestination(ctx, r.probes())
		}
	default:
		err = r.later(ctx)
	}
	if err != nil || !r.isOutage && r.rng.IntN(2) == 0 {
		return err
	}
	if err := r.compared(ctx); err != nil {
		return err
	}
	return r.claim(ctx)
}

// probes are those that are out, and at times all that is claimed beside them. In an outage they are the first, too,
// that come to a destination after its hold.
func (r *modelRun) probes() []int64 {
	beside := r.rng.IntN(4) == 0
	return slices.DeleteFunc(r.in("claimed"), func(id int64) bool {
		m := r.model.messages[id]
		held, probe, old := r.model.holds(m)
		first := r.isOutage && !old && r.model.destination(m.modelLane).State == "recovering"
		return !probe && !first && (!held || !beside)
	})
}

// old are those that were claimed before their destination was lifted.
func (r *modelRun) old() []int64 {
	return slices.DeleteFunc(r.in("claimed"), func(id int64) bool {
		_, _, old := r.model.holds(r.model.messages[id])
		return !old
	})
}

// comeDue lets the time come of some messages that wait for it.
func (r *modelRun) comeDue(ctx context.Context) error {
	ids := slices.DeleteFunc(r.in("pending"), func(id int64) bool { return r.model.messages[id].Ripe })
	if r.rng.IntN(2) == 0 {
		ids = r.some(ids)
	}
	r.note("%v come due", ids)
	for _, id := range ids {
		r.model.messages[id].Visible = 1577836800
	}
	return errors.Join(
		r.exec(ctx, `update outbox.pending as p set visible_after = '2020-01-01 00:00:00Z' where p.id = any ($1)`, ids),
		r.exec(ctx, `update outbox.walk set unripe_all_at = '-infinity'`)) // as 2 s later: see ripen
}

// observe asks for some destinations, which reads the reports.
func (r *modelRun) observe(ctx context.Context) error {
	var namespaces []*string
	var queues []string
	var lanes []modelLane
	for range 1 + r.rng.IntN(6) {
		lane := r.aDestination((*modelDestination).inTrouble)
		lanes, queues, namespaces = append(lanes, lane), append(queues, lane.Queue), append(namespaces, &lane.Namespace)
		if lane.Namespace == "" {
			namespaces[len(namespaces)-1] = nil
		}
	}
	r.note("observe %q", lanes)
	before, err := r.clock(ctx)
	if err != nil {
		return err
	}
	rows, err := r.conn.Query(ctx, `select o.state from outbox.observe($1, $2) as o order by o.n`, namespaces, queues)
	if err != nil {
		return err
	}
	states, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("observe: %w", err)
	}
	now, err := r.past(ctx, before)
	if err != nil {
		return err
	}
	r.model.fold(now, r.token)
	for i, lane := range lanes {
		if want := r.model.observed(lane); states[i] != want {
			return fmt.Errorf("observe says that %q is %s, it is %s", lane, states[i], want)
		}
	}
	return nil
}

// holdOne is an operator who holds a destination: for a time, or until it is lifted.
func (r *modelRun) holdOne(ctx context.Context) error {
	return r.holdThis(ctx, r.aDestination(func(d *modelDestination) bool { return d.State == "held" || r.isOutage }))
}

func (r *modelRun) holdThis(ctx context.Context, lane modelLane) error {
	length := []float64{1, 1000, 1e6, math.Inf(1)}[r.rng.IntN(4)]
	r.note("hold %q for %f s", lane, length)
	before, err := r.clock(ctx)
	if err != nil {
		return err
	}
	if err := r.exec(ctx, `select outbox.hold(nullif($1, ''), $2, case when $3::float8 < 'infinity' then make_interval(secs => $3) end)`,
		lane.Namespace, lane.Queue, length); err != nil {
		return err
	}
	now, err := r.past(ctx, before)
	r.model.hold(lane, now.plus(length, length), now, r.token)
	return err
}

// liftOne is an operator who lifts a hold.
func (r *modelRun) liftOne(ctx context.Context) error {
	lane := r.aDestination(func(d *modelDestination) bool { return d.State == "held" })
	r.note("lift %q", lane)
	before, err := r.clock(ctx)
	if err != nil {
		return err
	}
	var lifted bool
	if err := r.conn.QueryRow(ctx, `select outbox.lift(nullif($1, ''), $2)`, lane.Namespace, lane.Queue).Scan(&lifted); err != nil {
		return err
	}
	now, err := r.past(ctx, before)
	if want := r.model.lift(lane, now); lifted != want && err == nil {
		err = fmt.Errorf("lift of %q says %t", lane, lifted)
	}
	return err
}

// share is an operator who says whether namespaces share the endpoint of a route.
func (r *modelRun) share(ctx context.Context) error {
	lane := r.aDestination(func(*modelDestination) bool { return true })
	shared := []string{"true", "true", "false", ""}[r.rng.IntN(4)]
	r.note("shared %q: %q", lane.Queue, shared)
	r.model.share(lane.Queue, shared)
	return r.exec(ctx, `select outbox.set_shared($1, nullif($2, '')::boolean)`, lane.Queue, shared)
}

// prune comes by when a destination has been as it is for days.
func (r *modelRun) prune(ctx context.Context) error {
	lane := r.aDestination(func(*modelDestination) bool { return true })
	r.note("prune, with %q of last week", lane)
	before, err := r.clock(ctx)
	if err != nil {
		return err
	}
	if err := r.exec(ctx, `update outbox.destination as d set changed_at = clock_timestamp() - interval '7 days',
		  held_until = case when d.held_until < 'infinity' then clock_timestamp() - interval '7 days' else d.held_until end
		where d.namespace is not distinct from nullif($1, '') and d.task_queue = $2`, lane.Namespace, lane.Queue); err != nil {
		return err
	}
	now, err := r.clock(ctx)
	if err != nil {
		return err
	}
	if err := r.exec(ctx, `select outbox.prune(interval '100 years')`); err != nil {
		return err
	}
	if d := r.model.destination(lane); d.State == "held" && !math.IsInf(d.Until.Least, 1) {
		d.Until = modelInstant{before - 7*86400, now - 7*86400}
	}
	for of := range r.model.destinations {
		if r.model.isForgotten(of, of == lane, now) {
			delete(r.model.destinations, of)
		}
	}
	return r.exec(ctx, `update outbox.destination as d set changed_at = clock_timestamp()`)
}

// later lets time pass for a destination, in an outage for all of its route: a hold is over, or has lasted for long;
// a lift is some time ago.
func (r *modelRun) later(ctx context.Context) error {
	lane := r.aDestination(func(d *modelDestination) bool { return d.State == "held" || d.State == "recovering" })
	lifted := []float64{1.25, 2.25, 4.25, 9.25, 10.25, 96.25, 96.25, 96.25, 300.25, 1e5}[r.rng.IntN(10)]
	since := []float64{0, 0, 0, 1e6}[r.rng.IntN(4)]
	r.note("later for %q: lifted %f s ago", lane, lifted)
	before, err := r.clock(ctx)
	if err != nil {
		return err
	}
	if err := r.exec(ctx, `update outbox.destination as d set
		  held_until = case when d.held_until < 'infinity' then clock_timestamp() - interval '1 s' else d.held_until end,
		  lifted_at = case when d.lifted_at is not null then clock_timestamp() - make_interval(secs => $3) end,
		  held_since = d.held_since - make_interval(secs => $4)
		where ($5 or d.namespace is not distinct from nullif($1, '')) and d.task_queue = $2`,
		lane.Namespace, lane.Queue, lifted, since, r.isOutage); err != nil {
		return err
	}
	after, err := r.clock(ctx)
	now := modelInstant{before, after}
	for of, d := range r.model.destinations {
		if of != lane && !(r.isOutage && of.Queue == lane.Queue) {
			continue
		}
		if d.State == "held" && !math.IsInf(d.Until.Least, 1) {
			d.Until = now.plus(-1, -1)
		}
		if d.Lifted != (modelInstant{}) {
			d.Lifted = now.plus(-lifted, -lifted)
		}
		if d.Since != (modelInstant{}) {
			d.Since = d.Since.plus(-since, -since)
		}
	}
	return err
}
