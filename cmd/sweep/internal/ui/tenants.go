package ui

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

const (
	tenantsRows = 25 // tenants on a page
	routesRows  = 100
	explainRows = 100 // the batch that a tenant's page plans a claim with
)

// tenantRow is a row of outbox.survey_namespaces, and of outbox.hold_reasons.
type tenantRow struct {
	Name     string
	Due      int64
	NotDue   int64
	NextAt   *time.Time
	OldestAt *time.Time
	Claimed  int64
	Failed   int64
	Quota    int32
	Strict   bool
	Reason   *string // why a claim would take nothing

	Why   string // it waits, in words
	State string // held, waits, served, quiet: for the eye
	Line  *Line
	Held  int64 // routes of it that are held as destinations
}

const stateColumns = `
	select n.namespace, n.due, n.unripe, case when isfinite(h.next_due_at) then h.next_due_at end,
	       case when n.oldest_due_at is not null then greatest(n.oldest_due_at, '0001-01-01 00:00:00+00') end,
	       n.claimed, n.failed, n.quota, n.strict, h.reason,
	       (select count(*) from (select from outbox.holds as x where x.namespace = n.namespace limit 100) as x)
	from outbox.survey_namespaces(names => $1::text[]) with ordinality as n(
	       namespace, oldest_due_at, due, unripe, claimed, failed, quota, strict, paused, partial, at, free_due_at, ord)
	join outbox.hold_reasons($1::text[]) with ordinality as h(namespace, next_due_at, reason, ord) on h.ord = n.ord
	order by n.ord`

// readTenants reads how some tenants are.
func readTenants(ctx context.Context, tx pgx.Tx, names []string, o outbox) ([]tenantRow, error) {
	rows, err := tx.Query(ctx, stateColumns, names)
	if err != nil {
		return nil, fmt.Errorf("read the tenants: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (t tenantRow, err error) {
		err = row.Scan(&t.Name, &t.Due, &t.NotDue, &t.NextAt, &t.OldestAt, &t.Claimed, &t.Failed, &t.Quota, &t.Strict, &t.Reason, &t.Held)
		return t, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the tenants: %w", err)
	}
	for i := range list {
		list[i].judge(o)
	}
	return list, nil
}

// judge says why the tenant waits, from what was read.
func (t *tenantRow) judge(o outbox) {
	switch {
	case t.Due == 0 && t.Claimed > 0:
		t.State, t.Why = "served", "all that was due is being delivered"
	case t.Due == 0 && t.NotDue > 0:
		t.State, t.Why = "quiet", "nothing is due yet"
		if t.NextAt != nil {
			t.Why += ": the next message is due in " + until(*t.NextAt, o.At)
		}
	case t.Due == 0 && t.Failed > 0:
		t.State, t.Why = "quiet", "nothing waits; there are dead letters"
	case t.Due == 0:
		t.State, t.Why = "quiet", "nothing waits"
	case t.Reason != nil && t.Claimed > 0 && t.Quota > 0 && t.Claimed >= int64(t.Quota):
		t.State, t.Why = "waits", fmt.Sprintf("its quota is used up: %s of %d are being delivered", counted(t.Claimed, o.CountCap), t.Quota)
	case t.Reason != nil:
		t.State, t.Why = "held", shown(*t.Reason)
	case o.Live() == 0 && !o.claimedLately():
		t.State, t.Why = "held", "no node is running"
	case t.Claimed > 0:
		t.State, t.Why = "served", fmt.Sprintf("is being served: %s out for delivery", counted(t.Claimed, o.CountCap))
	default:
		t.State, t.Why = "waits", "its turn comes with a next claim"
	}
}

// ofAllHeld begins, in a reason, what is said of a route of all that is held.
const ofAllHeld = " of all is held"

// Short is Why for a table: of a route of all that is held, which every tenant has, the page of the tenant says the rest.
func (t tenantRow) Short() string {
	_, rest, ofAll := strings.Cut(t.Why, ofAllHeld)
	if !ofAll {
		return t.Why
	}
	before := strings.TrimSuffix(t.Why, rest)
	until, _, _ := strings.Cut(rest, ", ")
	return before + until
}

// Waited is how long its oldest due message has waited; "" where nothing is due.
func (t tenantRow) Waited(now time.Time) string {
	if t.OldestAt == nil {
		return ""
	}
	return ago(*t.OldestAt, now)
}

// waits is its place in the order of the tenants.
func (t tenantRow) waits() waits {
	return waits{Name: t.Name, Due: deref(t.OldestAt), IsDue: t.OldestAt != nil}
}

// draw adds the line of the last minutes.
func (t *tenantRow) draw(w waits, now time.Time) {
	waited := time.Duration(0)
	if t.OldestAt != nil && !t.OldestAt.Equal(always) {
		waited = max(now.Sub(*t.OldestAt), 0)
	}
	t.Line = w.drawn(time.Now(), waited)
}

type tenantsView struct {
	outbox
	surveyed
	Q       string
	Paged   bool // not the first page
	Tenants []tenantRow
	Next    string // link
	First   string // link
}

// tenants shows who waits longest.
func (s *Server) tenants(r *http.Request) (*page, error) {
	q := r.URL.Query()
	v := tenantsView{Q: q.Get("q")}
	after, err := parsePlace(q.Get("after"), q.Get("at"))
	if err != nil {
		return nil, err
	}
	v.Paged = after != nil
	if v.surveyed, err = s.survey.page(r.Context(), v.Q, after, tenantsRows); err != nil {
		return nil, err
	}
	names := make([]string, 0, len(v.Rows)+1)
	lines := map[string]waits{}
	for _, w := range v.Rows {
		names = append(names, w.Name)
		lines[w.Name] = w
	}
	exact := v.Q != "" && !v.Paged && lines[v.Q].Name == "" && len(v.Q) <= 512 // new since, or beyond what the survey remembers
	if exact {
		names = append(names, v.Q)
	}
	err = s.read(r.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
		if v.outbox, err = readOutbox(ctx, tx); err != nil {
			return err
		}
		v.Tenants, err = readTenants(ctx, tx, names, v.outbox)
		return err
	})
	if err != nil {
		return nil, err
	}
	if last := len(v.Tenants) - 1; exact && v.Tenants[last].Due+v.Tenants[last].NotDue+v.Tenants[last].Claimed+v.Tenants[last].Failed == 0 {
		v.Tenants = v.Tenants[:last]
	}
	for i := range v.Tenants {
		v.Tenants[i].draw(lines[v.Tenants[i].Name], v.At)
	}
	// In the order of what is shown: the look at all of them was earlier.
	slices.SortStableFunc(v.Tenants, func(a, b tenantRow) int { return compareWaits(a.waits(), b.waits()) })
	if v.More {
		last := v.Rows[len(v.Rows)-1]
		at := "-"
		if last.IsDue {
			at = last.Due.UTC().Format(time.RFC3339Nano)
		}
		v.Next = link("/", "q", v.Q, "after", last.Name, "at", at)
	}
	v.First = link("/", "q", v.Q)
	return &page{name: "tenants", title: "Tenants", at: v.At, data: v}, nil
}

// parsePlace reads a place in the order of the tenants from a link; nil: the beginning.
func parsePlace(name, at string) (*waits, error) {
	switch at {
	case "":
		return nil, nil
	case "-":
		return &waits{Name: name}, nil
	}
	due, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return nil, cannotBe("The address is none that these pages have made.")
	}
	return &waits{Name: name, Due: due, IsDue: true}, nil
}

// routeRow is a row of outbox.route_state.
type routeRow struct {
	TaskQueue string
	Due       int64
	NotDue    int64
	NextAt    *time.Time
	OldestAt  *time.Time
	OldestKey *string
	Claimed   int64
	Failed    int64
	Reason    *string // what holds it back
}

// planRow is a row of outbox.explain_claim.
type planRow struct {
	Namespace *string
	Due       *int64
	Claimed   *int32
	Quota     *int32
	Ceiling   *int32
	Headroom  *int32
	Slice     *int32
	Pass1     *int32
	Pass2     *int32
	Reason    string
}

// Takes is how many messages the claim would take.
func (p planRow) Takes() int64 { return int64(deref(p.Pass1)) + int64(deref(p.Pass2)) }

type tenantView struct {
	outbox
	Tenant tenantRow
	Routes []routeRow
	Cut    bool // there may be more routes
	Pauses []pauseRow
	Holds  []holdRow
	Plan   *planRow
	Before []string // what stands in the way of the claim itself
	Batch  int
}

// Uncertain says whether the counts of routes may be too small.
func (v tenantView) Uncertain() bool {
	return max(v.Tenant.Due, v.Tenant.NotDue, v.Tenant.Claimed, v.Tenant.Failed) >= v.CountCap
}

// tenant shows why a tenant waits.
func (s *Server) tenant(r *http.Request) (*page, error) {
	name := r.URL.Query().Get("name")
	line := s.survey.of(name)
	v := tenantView{Batch: explainRows}
	err := s.read(r.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
		if v.outbox, err = readOutbox(ctx, tx); err != nil {
			return err
		}
		list, err := readTenants(ctx, tx, []string{name}, v.outbox)
		if err != nil {
			return err
		}
		v.Tenant = list[0]
		if v.Routes, err = readRoutes(ctx, tx, name); err != nil {
			return err
		}
		v.Pauses, err = rowsOf[pauseRow](ctx, tx, `
			select p.namespace, p.task_queue, p.since, p.by, p.note, p.until from outbox.pauses as p
			where p.namespace = $1::text or p.namespace is null
			order by p.namespace nulls first, p.task_queue nulls first limit $2::int`, name, listPauses)
		if err != nil {
			return fmt.Errorf("read the pauses: %w", err)
		}
		v.Holds, err = rowsOf[holdRow](ctx, tx, holdColumns+`where h.namespace = $1::text or h.namespace is null order by h.task_queue, h.namespace limit $2::int`, name, listPauses)
		if err != nil {
			return fmt.Errorf("read the holds: %w", err)
		}
		return v.plan(ctx, tx, name)
	})
	if err != nil {
		return nil, err
	}
	v.Cut = len(v.Routes) == routesRows
	v.Tenant.draw(line, v.At)
	return &page{name: "tenant", title: shown(name), at: v.At, data: v}, nil
}

func readRoutes(ctx context.Context, tx pgx.Tx, name string) ([]routeRow, error) {
	rows, err := tx.Query(ctx, `
		select r.task_queue, r.due, r.not_due, case when isfinite(r.next_due_at) then r.next_due_at end,
		       case when r.oldest_due_at is not null then greatest(r.oldest_due_at, '0001-01-01 00:00:00+00') end,
		       r.oldest_key, r.claimed, r.failed, r.reason
		from outbox.route_state($1::text, $2::int) as r`, name, routesRows)
	if err != nil {
		return nil, fmt.Errorf("read the routes: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r routeRow, err error) {
		err = row.Scan(&r.TaskQueue, &r.Due, &r.NotDue, &r.NextAt, &r.OldestAt, &r.OldestKey, &r.Claimed, &r.Failed, &r.Reason)
		return r, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the routes: %w", err)
	}
	return list, nil
}

// plan reads what a claim of all shards would do with the tenant.
func (v *tenantView) plan(ctx context.Context, tx pgx.Tx, name string) error {
	rows, err := rowsOf[planRow](ctx, tx, `
		select e.namespace, e.due, e.claimed, e.quota, e.ceiling, e.headroom, e.slice, e.pass1, e.pass2, e.reason
		from outbox.explain_claim('sweep ui', outbox.all_shards(), $2::int, null, $1::text) as e`, name, v.Batch)
	if err != nil {
		return fmt.Errorf("explain the claim: %w", err)
	}
	for _, row := range rows {
		if row.Namespace == nil {
			v.Before = append(v.Before, shown(row.Reason))
		} else if v.Plan == nil {
			v.Plan = &row
		}
	}
	return nil
}

// Answer says in a sentence or two why the tenant waits.
func (v tenantView) Answer() (sentences []string) {
	t := v.Tenant
	if t.Due > 0 {
		sentences = append(sentences, fmt.Sprintf("%s %s due, the oldest for %s.", pluralUpTo(t.Due, v.CountCap, "message"), are(t.Due), t.Waited(v.At)))
	}
	why := t.Why
	switch {
	case t.Due == 0 || t.State == "held":
	case v.Plan != nil && v.Plan.Takes() > 0:
		why = fmt.Sprintf("nothing holds it: the next claim of %d would take %s of it (%s)", v.Batch, plural(v.Plan.Takes(), "message"), shown(v.Plan.Reason))
		if t.Claimed > 0 {
			why += fmt.Sprintf("; %s out for delivery now", counted(t.Claimed, v.CountCap))
		}
	case v.Plan != nil && t.State == "waits" && t.Reason == nil:
		why = shown(v.Plan.Reason)
	}
	return append(sentences, capital(why)+".")
}

// capital begins a sentence.
func capital(s string) string {
	r, size := utf8.DecodeRuneInString(s)
	return string(unicode.ToUpper(r)) + s[size:]
}

func are(n int64) string {
	if n == 1 {
		return "is"
	}
	return "are"
}
