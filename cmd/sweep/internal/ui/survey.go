package ui

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// survey looks at all tenants, a few at a time, again and again, in the background: who has been due for
// longest is not in any index. Each step is one short call; between two of them it rests, so that it
// takes half of one connection's time while somebody looks at the pages, and a tenth otherwise. In the
// first round it does not rest.
type survey struct {
	server *Server
	done   chan struct{}

	mu        sync.Mutex
	looked    time.Time         // somebody looked at the pages
	wake      chan struct{}     // closed when somebody looks who had not for long
	known     map[string]*waits // of the last round, and of this one
	list      []waits           // as of the last round, or of the first as far as it is: longest wait first, then by name
	began     time.Time         // the round that list is of; zero: there is none yet
	took      time.Duration     // that round; 0: it is not over
	published time.Time
	forgot    int           // the last round in which there were more tenants than surveyMost; 0: none
	cut       bool          // it is the round that list is of
	err       error         // of the last step
	first     chan struct{} // closed when the first round is over, or has failed
}

// Limits of a survey.
const (
	surveyMost  = 200_000 // tenants that it remembers: those that wait longest
	surveyStep  = 200     // tenants a call
	surveyEvery = 5 * time.Second
	surveyIdle  = time.Minute // for so long after the last request somebody looks
	lineSamples = 40
	lineEvery   = 15 * time.Second // between two samples
	lineLength  = 10 * time.Minute
)

// waits is how long a tenant has been waiting, now and in the last minutes.
type waits struct {
	Name  string
	Due   time.Time // when its oldest due message came due
	IsDue bool
	line  []sample
	round int
}

// sample is how long the oldest due message had waited at a time.
type sample struct {
	at     int64 // seconds of Unix, on this machine's clock
	waited float32
}

func newSurvey(s *Server) *survey {
	return &survey{server: s, done: make(chan struct{}), wake: make(chan struct{}), known: map[string]*waits{}, first: make(chan struct{})}
}

// look notes that somebody looks.
func (v *survey) look() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.looked) > surveyIdle {
		close(v.wake)
		v.wake = make(chan struct{})
	}
	v.looked = time.Now()
}

// rest waits for d while somebody looks, for up to ten times that while nobody does.
func (v *survey) rest(ctx context.Context, d time.Duration) {
	v.mu.Lock()
	wake := v.wake
	if time.Since(v.looked) <= surveyIdle {
		wake = nil
	} else {
		d *= 10
	}
	v.mu.Unlock()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-wake:
	}
}

func (v *survey) run(ctx context.Context) {
	defer close(v.done)
	for round := 1; ctx.Err() == nil; round++ {
		began := time.Now()
		err := v.round(ctx, round, began)
		v.mu.Lock()
		v.err = err
		if round == 1 {
			close(v.first)
		}
		v.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			v.server.Log.Warn("cannot look at the tenants", "event", "ui_survey_failed", "error", err.Error())
		}
		v.rest(ctx, max(surveyEvery-time.Since(began), surveyEvery/10))
	}
}

// round looks at all tenants once.
func (v *survey) round(ctx context.Context, round int, began time.Time) error {
	type row struct {
		Name string
		Due  *time.Time
	}
	for _, sql := range []string{
		// An infinite time is none of Go.
		`select n.namespace, greatest(n.oldest_due_at, case when n.oldest_due_at is not null then '0001-01-01 00:00:00+00'::timestamptz end)
		 from outbox.survey_namespaces($1::text, $2::int, null, '500 ms') as n`,
		`select n, null::timestamptz from outbox.known_namespaces($1::text, $2::int) as n`,
	} {
		var after *string
		for {
			step := time.Now()
			var rows []row
			var now time.Time
			err := v.server.read(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
				if err = tx.QueryRow(ctx, `select clock_timestamp()`).Scan(&now); err == nil {
					rows, err = rowsOf[row](ctx, tx, sql, after, surveyStep)
				}
				return err
			})
			if err != nil {
				return err
			}
			v.mu.Lock()
			for _, r := range rows {
				v.note(r.Name, r.Due, round, now)
			}
			if round == 1 && time.Since(v.published) > time.Second {
				v.publish(round, began, 0)
			}
			v.mu.Unlock()
			if len(rows) == 0 {
				break
			}
			after = &rows[len(rows)-1].Name
			if round > 1 {
				v.rest(ctx, time.Since(step))
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for name, w := range v.known {
		if w.round < round {
			delete(v.known, name)
		}
	}
	v.publish(round, began, max(time.Since(began), 1))
	return nil
}

// note takes what a step found of a tenant. One that is known already in this round keeps its wait.
func (v *survey) note(name string, due *time.Time, round int, now time.Time) {
	w := v.known[name]
	if w == nil {
		if len(v.known) >= surveyMost+surveyMost/10 {
			v.forget(round)
		}
		w = &waits{Name: name}
		v.known[name] = w
	}
	if w.round == round {
		return
	}
	w.round, w.IsDue, w.Due = round, due != nil, time.Time{}
	s := sample{at: time.Now().Unix()}
	if due != nil {
		w.Due = *due
		s.waited = float32(max(now.Sub(*due), 0).Seconds())
	}
	switch n := len(w.line); {
	case n == 0 && due == nil: // nothing to draw
	case n > 0 && s.at-w.line[n-1].at < int64(lineEvery.Seconds()):
	default:
		if n == lineSamples {
			w.line = slices.Delete(w.line, 0, 1)
		}
		w.line = append(w.line, s)
	}
}

// forget leaves surveyMost tenants, those that have waited longest.
func (v *survey) forget(round int) {
	v.forgot = round
	all := v.sorted(0)
	for _, w := range all[surveyMost:] {
		delete(v.known, w.Name)
	}
}

// publish makes the list anew.
func (v *survey) publish(round int, began time.Time, took time.Duration) {
	v.list, v.began, v.took, v.published, v.cut = v.sorted(round), began, took, time.Now(), v.forgot == round
}

// sorted are the tenants seen in a round or later, longest wait first, without their lines.
func (v *survey) sorted(round int) []waits {
	all := make([]waits, 0, len(v.known))
	for _, w := range v.known {
		if w.round >= round {
			all = append(all, waits{Name: w.Name, Due: w.Due, IsDue: w.IsDue})
		}
	}
	slices.SortFunc(all, compareWaits)
	return all
}

func compareWaits(a, b waits) int {
	switch {
	case a.IsDue && !b.IsDue:
		return -1
	case b.IsDue && !a.IsDue:
		return 1
	}
	return cmp.Or(a.Due.Compare(b.Due), strings.Compare(a.Name, b.Name))
}

// surveyed is a page of what a survey knows.
type surveyed struct {
	Rows    []waits
	More    bool
	All     int // of those that match
	Waiting int // of these, those with something due
	Longest *waits
	Age     time.Duration // since the look at them began
	Took    time.Duration // 0: it goes on
	Cut     bool
}

// page is up to most tenants whose names contain q, behind a place in the order.
func (v *survey) page(ctx context.Context, q string, after *waits, most int) (p surveyed, err error) {
	v.look()
	select { // at the very beginning
	case <-v.first:
	case <-ctx.Done():
	case <-time.After(2 * time.Second):
	}
	v.mu.Lock()
	list, began, took, failed, isCut := v.list, v.began, v.took, v.err, v.cut
	v.mu.Unlock()
	if began.IsZero() && failed != nil {
		return p, failed
	}
	p.Age, p.Took, p.Cut = time.Since(began), took, isCut
	if began.IsZero() {
		p.Age = 0
	}
	q = strings.ToLower(q)
	for i := range list {
		w := &list[i]
		if q != "" && !strings.Contains(strings.ToLower(w.Name), q) {
			continue
		}
		p.All++
		if w.IsDue {
			p.Waiting++
			if p.Longest == nil {
				p.Longest = w
			}
		}
		if after != nil && compareWaits(*w, *after) <= 0 {
			continue
		}
		if len(p.Rows) < most {
			p.Rows = append(p.Rows, *w)
		} else {
			p.More = true
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := range p.Rows {
		if known := v.known[p.Rows[i].Name]; known != nil {
			p.Rows[i].line = slices.Clone(known.line)
		}
	}
	return p, nil
}

// of is what is known of one tenant.
func (v *survey) of(name string) (w waits) {
	v.look()
	v.mu.Lock()
	defer v.mu.Unlock()
	if known := v.known[name]; known != nil {
		w = *known
		w.line = slices.Clone(known.line)
	}
	return w
}

// Known says how old the order of the tenants is.
func (p surveyed) Known() string {
	switch {
	case p.Age == 0:
		return "The tenants are being looked at for the first time: reload the page in a moment."
	case p.Took == 0:
		return fmt.Sprintf("The first look at all tenants goes on: %s so far, in %s. More may come, and wait longer.", plural(int64(p.All), "tenant"), span(p.Age))
	}
	text := fmt.Sprintf("%s. All were looked at in %s, from %s ago on: that is how old the order is; the numbers are of the time at the foot of the page.",
		plural(int64(p.All), "tenant"), length(p.Took), span(p.Age))
	if p.Cut {
		text += fmt.Sprintf(" There are more than %s tenants: those that wait least are left out. A search for a whole name finds them.", counted(surveyMost, 0))
	}
	return text
}

// length is a time that may be short.
func length(d time.Duration) string {
	if d < time.Second {
		return "less than a second"
	}
	return span(d)
}
