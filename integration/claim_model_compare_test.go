package integration

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"
)

// compareHolds finds every difference between the destinations and reports of the database and of the model, and
// takes over the instants and tokens that the database has chosen.
func (r *modelRun) compareHolds(ctx context.Context) error {
	rows, err := r.conn.Query(ctx, `select coalesce(d.namespace, ''), d.task_queue, d.state, coalesce(d.shared::text, ''), d.score, d.failed,
		  array(select n from unnest(d.failed_of) as n order by n collate "C"), coalesce(extract(epoch from d.held_since)::float8, 0),
		  coalesce(extract(epoch from d.held_until)::float8, 0), d.step,
		  coalesce(case when d.state = 'held' then d.probe_id end, 0), coalesce(case when d.state = 'held' then d.probe_token end, 0),
		  coalesce(extract(epoch from d.lifted_at)::float8, 0), d.lift_token
		from outbox.destination as d`)
	if err != nil {
		return err
	}
	var errs []error
	var lane modelLane
	var got modelDestination
	var since, until, lifted float64
	found := map[modelLane]bool{}
	token := r.token
	_, err = pgx.ForEachRow(rows, []any{
		&lane.Namespace, &lane.Queue, &got.State, &got.Shared, &got.Score, &got.Failed, &got.FailedOf, &since, &until, &got.Step,
		&got.Probe.ID, &got.Probe.Token, &lifted, &got.LiftToken,
	}, func() error {
		found[lane] = true
		want := r.model.destinations[lane]
		if want == nil {
			errs = append(errs, fmt.Errorf("INV-16: there is a destination %q: %+v", lane, got))
			return nil
		}
		if want.State != "held" {
			want.Probe = modelProbe{}
		}
		want.Since, want.Until, want.Lifted = want.Since.read(since), want.Until.read(until), want.Lifted.read(lifted)
		if want.LiftToken == modelLifted && got.LiftToken > r.was && (r.token == r.was || got.LiftToken < r.token) {
			want.LiftToken = got.LiftToken
			token = max(token, got.LiftToken)
		}
		got.Since, got.Until, got.Lifted, got.Before = modelInstant{since, since}, modelInstant{until, until}, modelInstant{lifted, lifted}, want.Before
		got.Failed, got.FailedOf = slices.Clip(got.Failed), slices.Clip(got.FailedOf)
		if w := fmt.Sprintf("%+v", *want); w != fmt.Sprintf("%+v", got) {
			errs = append(errs, fmt.Errorf("INV-16: %q is %+v, should be %s", lane, got, w))
		}
		return nil
	})
	r.token = token
	for lane, d := range r.model.destinations {
		if !found[lane] {
			errs = append(errs, fmt.Errorf("INV-16: destination %q is not there, should be %+v", lane, *d))
		}
	}
	return errors.Join(append(errs, err, r.compareReports(ctx))...)
}

// read is what the database has, where that is within the bounds.
func (i modelInstant) read(got float64) modelInstant {
	if i.Least-1e-5 <= got && got <= i.Most+1e-5 {
		return modelInstant{got, got}
	}
	return i
}

// compareReports: the model takes over the order of the reports of a call.
func (r *modelRun) compareReports(ctx context.Context) error {
	rows, err := r.conn.Query(ctx, `select r.kind, r.message_id, r.claim_token, r.namespace, r.task_queue, coalesce(r.shared::text, ''), coalesce(extract(epoch from r.hold)::float8, 0)
		from outbox.report as r order by r.id`)
	if err != nil {
		return err
	}
	var reports []modelReport
	var got modelReport
	_, err = pgx.ForEachRow(rows, []any{&got.Kind, &got.ID, &got.Token, &got.Namespace, &got.Queue, &got.Shared, &got.Hold}, func() error {
		i := slices.IndexFunc(r.model.reports, func(want modelReport) bool {
			if !slices.Contains(want.IDs, got.ID) {
				return false
			}
			want.ID, want.IDs = got.ID, nil
			return reflect.DeepEqual(want, got)
		})
		if i < 0 {
			return fmt.Errorf("INV-16: there is a report %+v, should be %+v", got, r.model.reports)
		}
		r.model.reports = slices.Delete(r.model.reports, i, i+1)
		reports = append(reports, got)
		reports[len(reports)-1].IDs = []int64{got.ID}
		return nil
	})
	if err == nil && len(r.model.reports) > 0 {
		err = fmt.Errorf("INV-16: reports are not there: %+v", r.model.reports)
	}
	r.model.reports = reports
	return err
}
