package integration

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// settle ends some claims.
func (r *modelRun) settle(ctx context.Context) error {
	if r.hasHolds && r.rng.IntN(2) == 0 {
		return r.failDestination(ctx, r.together(r.in("claimed")))
	}
	how := []string{"complete", "complete", "retry", "retry", "release", "fail", "extend"}[r.rng.IntN(7)]
	return r.settleAs(ctx, how, r.some(r.in("claimed")))
}

// settleAs ends these claims, and tries to end some with tokens that are not theirs.
func (r *modelRun) settleAs(ctx context.Context, how string, ids []int64) error {
	tokens := make([]int64, len(ids))
	for i, id := range ids {
		tokens[i] = r.model.messages[id].Token
	}
	wrong := r.some(r.in("claimed", "pending", "done", "failed", "cancelled"))
	wrong = slices.DeleteFunc(wrong[:min(len(wrong), 5)], func(id int64) bool { return slices.Contains(ids, id) })
	delay := []float64{-1, 0, 3600}[r.rng.IntN(3)]
	r.note("%s %v with tokens %v, delay %.0f, and %v with others", how, ids, tokens, delay, wrong)

	before, err := r.clock(ctx)
	if err != nil {
		return err
	}
	sql := fmt.Sprintf(`select x from outbox.%s($1, $2) as x`, how)
	args := []any{slices.Concat(ids, wrong), slices.Concat(tokens, r.notTokens(wrong))}
	if how == "retry" && delay >= 0 {
		sql = `select x from outbox.retry($1::bigint[], $2, null, array_fill(make_interval(secs => $3), array[cardinality($1::bigint[])])) as x`
		args = append(args, delay)
	}
	rows, err := r.conn.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	settled, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return fmt.Errorf("%s: %w", how, err)
	}
	slices.Sort(settled)
	slices.Sort(ids)
	if !slices.Equal(settled, ids) {
		return fmt.Errorf("INV-9: %s settled %v, the tokens of %v were right, those of %v were not", how, settled, ids, wrong)
	}
	if how == "complete" {
		r.model.reports = append(r.model.reports, r.model.up(ids)...)
	}
	return r.settled(ctx, how, ids, before, delay)
}

// notTokens makes up a token for each id that is not its own: an old one, or none
// that there is.
func (r *modelRun) notTokens(ids []int64) []int64 {
	tokens := make([]int64, len(ids))
	for i, id := range ids {
		tokens[i] = r.model.messages[id].Token + []int64{-1, 1, 1000}[r.rng.IntN(3)]
	}
	return tokens
}

// settled does to the model what the settle has done.
func (r *modelRun) settled(ctx context.Context, how string, ids []int64, before, delay float64) error {
	for _, id := range ids {
		m := r.model.messages[id]
		switch how {
		case "complete":
			r.end(m, "done")
		case "fail":
			r.end(m, "failed")
		case "release": // INV-10: not charged
			m.Attempt--
			suspect := m.Suspect
			r.back(m, m.Visible)
			m.Suspect = suspect
		case "retry":
			r.attempted(m)
			m.Ripe = m.Ripe && delay == 0
		}
	}
	switch after, err := r.clock(ctx); {
	case err != nil:
		return err
	case how == "extend":
		for _, id := range ids {
			r.expect[id] = modelExpect{lease: [2]float64{before + modelLease - 1e-5, after + modelLease + 1e-5}}
		}
	case how == "retry" && delay < 0:
		return r.from(ctx, ids, before, 3600*0.8, 3600*1.2)
	case how == "retry":
		return r.from(ctx, ids, before, delay, delay)
	}
	return nil
}

func (r *modelRun) end(m *modelMessage, state string) {
	m.State, m.Visible, m.Ripe, m.Token, m.Node, m.Lease, m.Suspect, m.Begun = state, 0, false, 0, "", 0, 0, 0
}

func (r *modelRun) back(m *modelMessage, visible float64) {
	r.end(m, "pending")
	m.Visible, m.Ripe = visible, true
}

// attempted ends an attempt that stays charged (INV-10).
func (r *modelRun) attempted(m *modelMessage) {
	if m.Attempt >= r.model.maxAttempts {
		r.end(m, "failed")
		return
	}
	r.back(m, 0)
}

// rescued ends an attempt that nobody answers for (INV-10): charged only if it had begun alone,
// or, for who never says what it has begun, from the tenth time on.
func (r *modelRun) rescued(m *modelMessage) {
	suspect := m.Suspect
	if suspect == 0 || m.Begun > 0 {
		suspect++
	}
	if m.Begun == 1 || m.Begun > 1 && m.Suspect >= 9 {
		r.attempted(m)
	} else {
		m.Attempt--
		r.back(m, 0)
	}
	if m.State == "pending" {
		m.Suspect = suspect
	}
}

// begin says of some claims, as a node does, that so many begin together; of others it shows
// tokens that are not theirs.
func (r *modelRun) begin(ctx context.Context) error {
	ids := r.some(r.in("claimed"))
	tokens := make([]int64, len(ids))
	together := []int{1, 4, 16}[r.rng.IntN(3)]
	for i, id := range ids {
		tokens[i] = r.model.messages[id].Token
		r.model.messages[id].Begun = together
	}
	wrong := slices.DeleteFunc(r.some(r.in("claimed", "pending", "done")), func(id int64) bool { return slices.Contains(ids, id) })
	if len(ids)+len(wrong) == 0 {
		return nil
	}
	r.note("begin %v, %d together, and %v with other tokens", ids, together, wrong)
	rows, err := r.conn.Query(ctx, `select b.id from outbox.begin_delivery($1, $2, $3) as b order by b.id`,
		slices.Concat(ids, wrong), slices.Concat(tokens, r.notTokens(wrong)), together)
	if err != nil {
		return err
	}
	begun, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	slices.Sort(ids)
	if err == nil && !slices.Equal(begun, ids) {
		err = fmt.Errorf("INV-9: begin_delivery noted %v, the tokens of %v were right", begun, ids)
	}
	return err
}

// rescue lets some leases expire and takes the messages back.
func (r *modelRun) rescue(ctx context.Context) error {
	ids := r.some(r.in("claimed"))
	before, err := r.clock(ctx)
	if err != nil {
		return err
	}
	if err := r.exec(ctx, `update outbox.claimed as c set lease_until = '2020-01-01' where c.id = any ($1)`, ids); err != nil {
		return err
	}
	most := 1 + r.rng.IntN(60)
	r.note("rescue %d of %v", most, ids)
	for _, id := range ids {
		r.expect[id] = modelExpect{lease: [2]float64{1577836800, 1577836800}}
		r.model.messages[id].Lease = 1577836800
	}
	rows, err := r.conn.Query(ctx, `select x.id from outbox.rescue($1) as x`, most)
	if err != nil {
		return err
	}
	rescued, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	expired := r.model.all(func(m *modelMessage) bool { return m.State == "claimed" && m.Lease == 1577836800 })
	if len(rescued) != min(most, len(expired)) {
		return fmt.Errorf("rescue(%d) took %d of %d", most, len(rescued), len(expired))
	}
	for _, id := range rescued {
		m := r.model.messages[id]
		if m.State != "claimed" || m.Lease != 1577836800 {
			return fmt.Errorf("INV-2: rescued %+v", *m)
		}
		r.rescued(m)
	}
	return r.from(ctx, rescued, before, 0, 0)
}

func (r *modelRun) cancel(ctx context.Context) error {
	ids := r.some(r.in("pending", "claimed", "done", "failed", "cancelled"))
	ids = ids[:min(len(ids), 1+r.rng.IntN(10))]
	r.note("cancel %v", ids)
	var keys []string
	want := map[string]string{}
	for _, id := range ids {
		m := r.model.messages[id]
		keys = append(keys, m.Key)
		if m.State == "pending" || m.State == "claimed" {
			want[m.Key] = m.State
			r.end(m, "cancelled")
		}
	}
	rows, err := r.conn.Query(ctx, `select c.dispatch_key, c.was from outbox.cancel($1) as c`, keys)
	if err != nil {
		return err
	}
	var key, was string
	got := 0
	_, err = pgx.ForEachRow(rows, []any{&key, &was}, func() error {
		if got++; want[key] != was {
			return fmt.Errorf("cancel says that %s was %q, it was %q", key, was, want[key])
		}
		return nil
	})
	if err == nil && got != len(want) {
		err = fmt.Errorf("cancel returned %d keys of %v", got, want)
	}
	return err
}

func (r *modelRun) redrive(ctx context.Context) error {
	ids := r.some(r.in("failed", "cancelled", "done", "pending", "claimed"))
	r.note("redrive %v", ids)
	before, err := r.clock(ctx)
	if err != nil {
		return err
	}
	rows, err := r.conn.Query(ctx, `select x from outbox.redrive($1::bigint[]) as x`, ids)
	if err != nil {
		return err
	}
	redriven, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	var want []int64
	for _, id := range ids {
		if m := r.model.messages[id]; m.State == "failed" || m.State == "cancelled" {
			want = append(want, id)
			m.Attempt = 0
			r.back(m, 0)
		}
	}
	slices.Sort(want)
	slices.Sort(redriven)
	if !slices.Equal(want, redriven) {
		return fmt.Errorf("redrive brought %v back, should be %v", redriven, want)
	}
	return r.from(ctx, want, before, 0, 0)
}

// hold pauses something, for an hour or without an end, or takes a pause back, or lets it end.
func (r *modelRun) hold(ctx context.Context) error {
	t := r.tenants[r.rng.IntN(len(r.tenants))]
	lane := modelLane{t.name, t.routes[r.rng.IntN(len(t.routes))]}
	switch r.rng.IntN(12) {
	case 0, 1, 2, 3:
		lane.Namespace = ""
	case 4, 5, 6:
		lane.Queue = ""
	case 7:
		lane = modelLane{}
	}
	for paused := range r.model.pauses { // most pauses do not last
		if r.rng.IntN(2) == 0 {
			lane = paused
			break
		}
	}
	calls := []string{
		"outbox.pause(nullif($1, ''), nullif($2, ''), everything => $1 || $2 = '')",
		"outbox.pause(nullif($1, ''), nullif($2, ''), everything => $1 || $2 = '', until => clock_timestamp() + interval '1 h')",
	}
	if r.model.pauses[lane] {
		calls = []string{"outbox.resume(nullif($1, ''), nullif($2, ''))", "pg_temp.end_pause(nullif($1, ''), nullif($2, ''))"}
		delete(r.model.pauses, lane)
	} else {
		r.model.pauses[lane] = true
	}
	call := calls[r.rng.IntN(len(calls))]
	r.note("%s, %v", call, lane)
	var changed bool
	err := r.conn.QueryRow(ctx, "select "+call, lane.Namespace, lane.Queue).Scan(&changed)
	if err == nil && !changed {
		err = fmt.Errorf("%s, %v: nothing changed", call, lane)
	}
	return err
}

func (r *modelRun) setQuota(ctx context.Context) error {
	name := r.tenants[r.rng.IntN(len(r.tenants))].name
	if r.rng.IntN(5) == 0 {
		r.note("clear quota of %q", name)
		delete(r.model.quotas, name)
		return r.exec(ctx, `select outbox.clear_quota($1)`, name)
	}
	q := modelQuota{quota: []int{0, 1, 1, 2, 5, 7, 1000}[r.rng.IntN(7)], strict: r.rng.IntN(2) == 0}
	r.note("quota of %q: %+v", name, q)
	r.model.quotas[name] = q
	return r.exec(ctx, `select outbox.set_quota($1, $2, $3)`, name, q.quota, q.strict)
}
